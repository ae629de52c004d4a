use super::{
    DnsBlock,
    DnsPosition::{self, AfterOwners, First},
    DnsTcp::{Captured, InsteadOfOutbound, Ordinary},
};

const POSITIONS: [DnsPosition; 2] = [First, AfterOwners];
const HIGHEST: u16 = u16::MAX;

/// Where the rules stand, where they capture TCP, whether they do so instead of the outbound port, UDP, exclusions.
type Answers = ([bool; 2], [bool; 2], bool, bool, bool);

fn answers(block: DnsBlock) -> Answers {
    (
        POSITIONS.map(|position| block.is_at(position)),
        POSITIONS.map(|position| block.captures_tcp_at(position)),
        block.is_instead_of_outbound(),
        block.has_udp(),
        block.has_udp_exclusions(),
    )
}

#[test]
fn rules_answer_what_they_were_made_of() {
    let (first, after_owners, nowhere) = ([true, false], [false, true], [false; 2]);
    let rules = [
        (First, Ordinary, first, nowhere, false),
        (First, Captured, first, first, false),
        (AfterOwners, Captured, after_owners, after_owners, false),
        (AfterOwners, InsteadOfOutbound, after_owners, nowhere, true),
    ];
    for (position, tcp, at, tcp_at, instead) in rules {
        // No bit of the port is read as an answer, and none is lost.
        for port in [0, 53, 0x8000, HIGHEST] {
            let plain = DnsBlock::new(port, position, tcp);
            let udp = plain.with_udp();
            let all = udp.with_udp_exclusions();
            assert_eq!(answers(plain), (at, tcp_at, instead, false, false));
            assert_eq!(answers(udp), (at, tcp_at, instead, true, false));
            assert_eq!(answers(all), (at, tcp_at, instead, true, true));
            assert_eq!(all.with_udp().with_udp_exclusions(), all);
            assert_eq!(DnsBlock::from_bits(all.to_bits()).port(), port);
        }
    }
    assert_eq!(
        answers(DnsBlock::NONE),
        (nowhere, nowhere, false, false, false)
    );
}
