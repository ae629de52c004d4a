//! Rules without a policy.

use super::{Fate, Hook, Nat, Packet};

fn nat(rules: &str) -> Result<Nat, String> {
    let builtin = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]
        .map(|chain| format!(":{chain} ACCEPT [0:0]\n"))
        .concat();
    Nat::parse(&format!(
        "*nat\n{builtin}:A - [0:0]\n:B - [0:0]\n{rules}\nCOMMIT\n"
    ))
}

fn sent(destination: &str, port: u16, owner: Option<(u32, u32)>) -> Packet {
    Packet {
        hook: Hook::Output {
            output: "eth0".to_owned(),
            owner,
        },
        source: "10.0.0.1".parse().unwrap(),
        destination: destination.parse().unwrap(),
        port,
        udp: false,
        mark: 0,
    }
}

#[test]
fn a_walk_goes_through_chains_and_back() {
    let nat = nat("-A OUTPUT -p tcp -j A\n\
        -A OUTPUT -p tcp -m tcp ! --dport 80 -j B\n\
        -A A -d 192.0.2.0/24 -o eth0 -j RETURN\n\
        -A A ! -d 10.0.0.0/8 -j B\n\
        -A B -p tcp -j REDIRECT --to-ports 7")
    .unwrap();
    let walk = |destination, port| nat.walk(&sent(destination, port, None)).unwrap();
    let by = |outcome: super::Outcome| outcome.by.join("; ");

    let outcome = walk("198.51.100.1", 80);
    assert_eq!(outcome.fate, Fate::Redirected(7));
    assert_eq!(
        by(outcome),
        "-A OUTPUT -p tcp -j A; -A A ! -d 10.0.0.0/8 -j B; -A B -p tcp -j REDIRECT --to-ports 7"
    );
    let outcome = walk("192.0.2.200", 80);
    assert_eq!(outcome.fate, Fate::Accepted);
    assert_eq!(
        by(outcome),
        "-A OUTPUT -p tcp -j A; -A A -d 192.0.2.0/24 -o eth0 -j RETURN"
    );
    // RETURN is not the end in a chain that something has jumped to.
    assert_eq!(walk("192.0.2.200", 81).fate, Fate::Redirected(7));
    let outcome = walk("10.255.255.255", 80);
    assert_eq!((outcome.fate, outcome.by), (Fate::Accepted, vec![]));
}

#[test]
fn owners() {
    let nat = nat(
        "-A OUTPUT -m owner --uid-owner 1 -m owner ! --gid-owner 2 -j RETURN\n\
        -A OUTPUT -m owner ! --gid-owner 3 -m owner ! --gid-owner 4 -j A\n\
        -A A -p tcp -j REDIRECT --to-ports 7",
    )
    .unwrap();
    let fate = |owner| nat.walk(&sent("192.0.2.1", 80, owner)).unwrap().fate;
    assert_eq!(fate(Some((1, 5))), Fate::Accepted);
    assert_eq!(fate(Some((1, 2))), Fate::Redirected(7));
    assert_eq!(fate(Some((6, 5))), Fate::Redirected(7));
    assert_eq!(fate(Some((6, 4))), Fate::Accepted);
    // A socket without an owner is neither 3 nor 4.
    assert_eq!(fate(None), Fate::Redirected(7));
}

#[test]
fn inbound() {
    let nat = nat("-A PREROUTING -i eth1 -j RETURN\n\
        -A PREROUTING -s 10.0.0.1/32 -j A\n\
        -A A -p tcp -j REDIRECT --to-ports 7")
    .unwrap();
    let fate = |input: &str| {
        let hook = Hook::Prerouting {
            input: input.to_owned(),
        };
        let packet = Packet {
            hook,
            ..sent("192.0.2.1", 80, None)
        };
        nat.walk(&packet).unwrap().fate
    };
    assert_eq!(fate("eth0"), Fate::Redirected(7));
    assert_eq!(fate("eth1"), Fate::Accepted);
}

#[test]
fn interfaces() {
    for (written, output, holds) in [
        ("eth0", "eth0", true),
        ("eth0", "eth", false),
        ("eth0", "eth01", false),
        ("eth+", "eth", true),
        ("eth+", "eth0", true),
        ("eth+", "et", false),
        ("e+h0", "eth0", false),
        ("e+h0", "e+h0", true),
        ("+", "lo", true),
    ] {
        let nat = nat(&format!("-A OUTPUT -o {written} -j RETURN")).unwrap();
        let hook = Hook::Output {
            output: output.to_owned(),
            owner: None,
        };
        let packet = Packet {
            hook,
            ..sent("192.0.2.1", 80, None)
        };
        let outcome = nat.walk(&packet).unwrap();
        assert_eq!(!outcome.by.is_empty(), holds, "{written} {output}");
    }
}

#[test]
fn prefixes() {
    for (net, addr, holds) in [
        ("0.0.0.0/0", "255.0.0.1", true),
        ("::/0", "ffff::1", true),
        ("::/0", "1.2.3.4", false),
        ("10.0.0.1/32", "10.0.0.1", true),
        ("10.0.0.1/32", "10.0.0.0", false),
        ("10.0.0.0/31", "10.0.0.1", true),
        ("fd00::/8", "fdff::1", true),
        ("fd00::/9", "fdff::1", false),
        ("::6/128", "::7", false),
    ] {
        let nat = nat(&format!("-A OUTPUT -d {net} -j RETURN")).unwrap();
        let outcome = nat.walk(&sent(addr, 80, None)).unwrap();
        assert_eq!(!outcome.by.is_empty(), holds, "{net} {addr}");
    }
}

#[test]
fn what_is_not_understood_is_an_error() {
    for rules in [
        "-A OUTPUT -p sctp -j RETURN",
        "-A OUTPUT -j RETURN --to-ports 7",
        "-A OUTPUT -j REDIRECT --to-ports 7",
        "-A OUTPUT -p tcp -j REDIRECT",
        "-A OUTPUT -p tcp --dport 80 -j RETURN",
        "-A OUTPUT -m tcp --dport 80 -j RETURN",
        "-A OUTPUT -p tcp -m tcp --dport 80-90 -j RETURN",
        "-A OUTPUT --uid-owner 1 -j RETURN",
        "-A OUTPUT -m owner --uid-owner 1 --uid-owner 2 -j RETURN",
        "-A OUTPUT -d 10.0.0.0/8 -d 10.0.0.0/9 -j RETURN",
        "-A OUTPUT -d 10.0.0.0/33 -j RETURN",
        "-A OUTPUT -d example.org/32 -j RETURN",
        "-A OUTPUT -o sixteen-bytes-12 -j RETURN",
        "-A OUTPUT -m conntrack --ctstate NEW -j RETURN",
        "-A OUTPUT ! -j RETURN",
        "-A OUTPUT -j DROP",
        "-A OUTPUT -j PREROUTING",
        "-A OUTPUT -d 10.0.0.0/8",
        "-A OUTPUT -j",
        "-A C -j RETURN",
        "-I OUTPUT -j RETURN",
        "",
        "COMMIT",
    ] {
        assert!(nat(rules).is_err(), "{rules}");
    }
    assert!(Nat::parse("*nat\nCOMMIT\n").is_err());
    for unmeetable in [
        "-A OUTPUT -i eth0 -j RETURN",
        "-A OUTPUT -p tcp -j A\n-A A -j A",
    ] {
        let nat = nat(unmeetable).unwrap();
        assert!(
            nat.walk(&sent("10.0.0.1", 80, None)).is_err(),
            "{unmeetable}"
        );
    }
}
