use super::take;

/// After a million tasks the kernel returns for a moment, with nothing.
#[test]
fn a_walk_over_all_tasks_ends_with_the_last() {
    let mut pids = Vec::new();
    assert!(take(&mut pids, &[], None).is_continue());
    assert!(take(&mut pids, bytemuck::bytes_of(&[7_i32, 0, 8]), None).is_continue());
    assert_eq!(pids, [7, 8]);
    assert!(take(&mut pids, &[], Some(3)).is_continue());
    assert!(take(&mut pids, bytemuck::bytes_of(&[9_i32, 10]), Some(3)).is_break());
    assert_eq!(pids, [7, 8, 9]);
}
