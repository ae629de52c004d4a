use super::{Class, Rule};

#[test]
fn numbers_and_names_are_unique_and_lead_back() {
    for (position, rule) in Rule::ALL.iter().enumerate() {
        assert_eq!(Rule::from_number(*rule as u32), Some(*rule));
        assert_eq!(Rule::from_name(rule.name()), Some(*rule));
        for other in &Rule::ALL[position + 1..] {
            assert!((*rule as u32) < (*other as u32));
            assert_ne!(rule.name(), other.name());
        }
    }
    assert_eq!(Rule::from_number(0), None);
    assert_eq!(Rule::from_name(""), None);
}

#[test]
fn refusals_are_what_is_refused_or_fails() {
    for class in [
        Class::Outbound,
        Class::Inbound,
        Class::Untouched,
        Class::BeforeSidecar,
        Class::Udp,
        Class::GivenUp,
    ] {
        assert!(!class.is_refusal(), "{class:?}");
    }
    for class in [Class::Refused, Class::Failed] {
        assert!(class.is_refusal(), "{class:?}");
    }
}
