use serde_json::json;

use super::PodState;

#[test]
fn states_have_one_name_everywhere() {
    for state in PodState::ALL {
        assert_eq!(json!(state), json!(state.name()));
    }
}
