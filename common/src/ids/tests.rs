use super::{NetnsCookie, NetnsInode, PolicyId};

#[test]
fn an_id_gives_back_its_number_and_prints_it() {
    for number in [0, 1, 4_026_531_840, u64::MAX] {
        assert_eq!(NetnsCookie::new(number).get(), number);
        assert_eq!(NetnsCookie::new(number).to_string(), number.to_string());
        assert_eq!(NetnsInode::new(number).get(), number);
        assert_eq!(NetnsInode::new(number).to_string(), number.to_string());
    }
    for number in [0, 1, u32::MAX] {
        assert_eq!(PolicyId::new(number).get(), number);
        assert_eq!(PolicyId::new(number).to_string(), number.to_string());
    }
}

#[test]
fn ids_are_ordered_by_their_number_and_keep_the_formatting_width() {
    assert!(PolicyId::new(9) < PolicyId::new(10));
    assert_eq!(format!("{:>4}", PolicyId::new(7)), "   7");
}
