use std::time::Duration;

use netlink_packet_core::NetlinkSerializable as _;
use netlink_packet_sock_diag::{
    constants::{AF_INET, IPPROTO_TCP, TCP_ESTABLISHED, TCP_FIN_WAIT2, TCP_SYN_SENT},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use sidetrack_common::{
    addr::Addr,
    conn::{Role, SockRecord, StoredRecord},
};

use super::{Request, Traffic, has_sent_syn, record_in};

#[test]
fn the_request_names_the_map_after_the_sockets() {
    let request = Request {
        sockets: InetRequest {
            family: AF_INET,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::INFO,
            states: StateFlags::ESTABLISHED,
            socket_id: SocketId::new_v4(),
        },
        map_fd: 7,
    };
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    assert_eq!(bytes.len(), 56 + 12);
    let words: Vec<u16> = bytes[56..]
        .chunks(2)
        .map(|word| u16::from_ne_bytes([word[0], word[1]]))
        .collect();
    let fd: Vec<u16> = 7_i32
        .to_ne_bytes()
        .chunks(2)
        .map(|word| u16::from_ne_bytes([word[0], word[1]]))
        .collect();
    assert_eq!(words, [12, 0x8002, 8, 1, fd[0], fd[1]]);
}

#[test]
fn the_record_is_the_maps_value() {
    let record = SockRecord {
        addr: Addr::v4([10, 1, 0, 9]),
        source: Addr::UNSPECIFIED,
        port: 80,
        role: Role::Direct as u16,
        capture_port: 0,
        target_port: 0,
    };
    let attribute = |kind: u16, value: &[u8]| {
        let length = 4 + value.len() as u16;
        [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    };
    let id = attribute(2, &[5, 0, 0, 0]);
    let stored = StoredRecord {
        record,
        netns: 7,
        charge: 1,
        released: 0,
    };
    let value = attribute(3, bytemuck::bytes_of(&stored));
    let storages = attribute(1, &[id.clone(), value].concat());
    let read = record_in(&storages).unwrap();
    assert!(read.addr.is(record.addr) && read.port == 80 && read.role == 3);
    assert!(record_in(&attribute(1, &id)).is_none(), "no value");
    assert!(record_in(&attribute(1, &attribute(3, &[0; 8]))).is_none());
    assert!(record_in(&storages[..20]).is_none(), "cut off");
}

#[test]
fn traffic_is_what_was_sent_once() {
    let mut info = vec![0; 232];
    info[44..48].copy_from_slice(&1500_u32.to_ne_bytes());
    info[52..56].copy_from_slice(&20_u32.to_ne_bytes());
    info[128..136].copy_from_slice(&7_u64.to_ne_bytes());
    info[200..208].copy_from_slice(&100_u64.to_ne_bytes());
    info[208..216].copy_from_slice(&40_u64.to_ne_bytes());
    let traffic = Traffic::of(&info, TCP_ESTABLISHED).unwrap();
    let wanted = Traffic {
        sent: 60,
        received: 7,
        idle: Some(Duration::from_millis(20)),
    };
    assert_eq!(traffic, wanted);
    assert_eq!(Traffic::of(&info, TCP_SYN_SENT).unwrap().idle, None);
    assert_eq!(Traffic::of(&info[..200], TCP_ESTABLISHED), None);
}

#[test]
fn a_syn_is_acknowledged_and_not_sent() {
    const QUEUED: u32 = 700;
    let info = |acked: u64| {
        let mut info = [0; 216];
        let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
        put(120, &acked.to_ne_bytes());
        // Not sent yet, so that 500 of the bytes in the queue are on their way.
        put(144, &200_u32.to_ne_bytes());
        put(200, &3_000_u64.to_ne_bytes());
        put(208, &1_000_u64.to_ne_bytes());
        info
    };
    let ask = |acked| has_sent_syn(&info(acked), TCP_ESTABLISHED, QUEUED);
    assert_eq!(ask(1_501), Some(true));
    assert_eq!(ask(1_500), Some(false));
    // The figures are not of one moment.
    assert_eq!(ask(1_499), None);
    assert_eq!(ask(1_502), None);
    assert_eq!(has_sent_syn(&info(1_501), TCP_ESTABLISHED, 100), None);
    // A FIN counts as a byte as well.
    assert_eq!(has_sent_syn(&info(1_501), TCP_FIN_WAIT2, QUEUED), None);
    // Linux before 4.19 has a shorter struct.
    assert_eq!(
        has_sent_syn(&info(1_501)[..192], TCP_ESTABLISHED, QUEUED),
        None
    );
}
