use std::path::Path;

use sidetrack_common::task::Group;
use sidetrack_policy::PodRef;

use super::problem;

#[test]
fn the_problem_names_pod_process_and_cgroup() {
    let pod = PodRef {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    };
    let cgroup = Path::new("/sys/fs/cgroup/kubepods");
    let of = |count| Group {
        started: 1,
        pid: 7,
        count,
    };
    let one = problem(&pod, of(1), cgroup);
    assert!(one.starts_with("pod shop/web: process 7 is not below /sys/fs/cgroup/kubepods,"));
    let more = problem(&pod, of(3), cgroup);
    assert!(more.contains("process 7 (and 2 more) is not"), "{more}");
}
