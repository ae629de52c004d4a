use super::*;

fn span(text: &str) -> Span {
    text.parse().expect("a span")
}

/// The value for a number by the rows.
fn by_rows(rows: &[(IpNet, u32)], number: u32) -> Option<u32> {
    let addr = std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(number));
    let mut holding = rows.iter().filter(|(net, _)| net.contains(&addr));
    let found = holding.next().map(|(_, value)| *value);
    assert_eq!(holding.next(), None, "rows overlap at {number}");
    found
}

#[test]
fn a_span_is_read_in_each_form_and_printed_in_one() {
    for (text, printed) in [("80", "80"), ("8000-9000", "8000-9000"), ("1:2", "1-2")] {
        assert_eq!(span(text).to_string(), printed);
    }
    for wrong in ["", "-", "9-8", "a", "1-", "-1", "1-2-3", "4294967296"] {
        assert!(wrong.parse::<Span>().is_err(), "{wrong}");
    }
}

#[test]
fn rows_have_the_values_of_the_spans() {
    let valued = [
        (span("53"), 1),
        (span("3000-5000"), 2),
        (span("4000-4294967295"), 4),
        (span("0"), 8),
    ];
    for fold in [Fold::Bits, Fold::First] {
        let rows = fold.ranges(&valued);
        let ends = [
            0,
            1,
            52,
            53,
            54,
            2999,
            3000,
            3999,
            4000,
            5000,
            5001,
            u32::MAX,
        ];
        for number in ends {
            let wanted = fold.value(&valued, number);
            assert_eq!(by_rows(&rows, number), wanted, "{fold:?} of {number}");
        }
    }
}
