use bytemuck::Zeroable as _;

use super::*;

/// Rows with these ports, and whether they are retired.
fn rows(of: &[(u16, u32)]) -> Vec<DestinationRow> {
    let row = |(at, (port, retired)): (usize, &(u16, u32))| {
        let mut row = DestinationRow::zeroed();
        row.key.target_be = [at as u32, 0];
        row.destination.dialed_port = *port;
        row.destination.retired = *retired;
        row
    };
    of.iter().enumerate().map(row).collect()
}

/// Which of them are to go.
fn chosen(rows: &[DestinationRow], excess: usize, in_use: &[u32]) -> Vec<u32> {
    let is_idle = |row: &DestinationRow| !in_use.contains(&row.key.target_be[0]);
    let (go, stay) = choose_idle(rows.iter().collect(), excess, is_idle);
    assert_eq!(go.len() + stay.len(), rows.len());
    go.iter().map(|row| row.key.target_be[0]).collect()
}

#[test]
fn rows_that_were_retired_go_first_and_those_in_use_stay() {
    let rows = rows(&[(80, 0), (80, 0), (80, 1), (80, 1)]);
    assert!(chosen(&rows, 0, &[]).is_empty());
    assert_eq!(chosen(&rows, 2, &[]), [2, 3]);
    assert_eq!(chosen(&rows, 3, &[3]), [2, 0, 1]);
    assert!(chosen(&rows, 9, &[0, 1, 2, 3]).is_empty());
}

#[test]
fn the_same_servers_stay_when_the_others_were_retired() {
    let mut of: Vec<(u16, u32)> = (0..MAX_SERVERS + 2).map(|_| (DNS_PORT, 0)).collect();
    let others = [MAX_SERVERS as u32, MAX_SERVERS as u32 + 1];
    assert_eq!(chosen(&rows(&of), 9, &[]), others);
    for (_, retired) in &mut of[MAX_SERVERS..] {
        *retired = 1;
    }
    assert_eq!(chosen(&rows(&of), 9, &[]), others);
}

#[test]
fn each_pod_has_the_same_share_of_what_departed_ones_leave() {
    let excess = |pool, pods: &[(u64, u64)]| -> Vec<(u64, usize)> {
        beyond_share(pool, pods.to_vec()).into_iter().collect()
    };
    assert_eq!(excess(POOL_SHORT, &[(1, POOL_SHORT)]), []);
    assert_eq!(
        excess(POOL_SHORT + 8, &[(1, POOL_SHORT + 8), (2, 0)]),
        [(1, 8)]
    );
    let half = POOL_SHORT / 2;
    assert_eq!(
        excess(POOL_SHORT, &[(1, half + 5), (2, half - 5)]),
        [(1, 5)]
    );
    // What departed pods have leaves 132, or nothing.
    assert_eq!(excess(POOL_SHORT + 8, &[(3, 100), (4, 40)]), [(3, 34)]);
    let all = excess(POOL_SHORT + 200, &[(3, 100), (4, 40)]);
    assert_eq!(all, [(3, 100), (4, 40)]);
    assert_eq!(excess(DESTINATION_POOL, &[(5, POOL_SHORT)]).len(), 1);
}
