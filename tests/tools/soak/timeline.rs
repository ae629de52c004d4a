//! What may be the case when. Each change is recorded before it begins and again once it is
//! done: for a connection in between either state is right, before and after only one.

use parking_lot::RwLock;

use crate::{targets::Policy, wire::now};

/// What may be the case with a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Policies that may be active, one bit each.
    pub policies: u16,
    /// It may not be enrolled.
    pub not_enrolled: bool,
    /// Its sidecar may be down.
    pub sidecar_down: bool,
    /// It is going away: anything is right.
    pub leaving: bool,
}

impl State {
    /// Nothing but this policy.
    pub fn settled(policy: Policy) -> Self {
        Self {
            policies: 1 << policy.0,
            ..Self::default()
        }
    }

    /// Either of two.
    fn or(self, other: Self) -> Self {
        Self {
            policies: self.policies | other.policies,
            not_enrolled: self.not_enrolled | other.not_enrolled,
            sidecar_down: self.sidecar_down | other.sidecar_down,
            leaving: self.leaving | other.leaving,
        }
    }

    /// The policies it may have, `None` for not being enrolled.
    pub fn possible(self) -> impl Iterator<Item = Option<Policy>> + Clone {
        let enrolled = (0..Policy::COUNT)
            .filter(move |number| self.policies & 1 << number != 0)
            .map(|number| Some(Policy(number)));
        enrolled.chain((self.not_enrolled || self.leaving).then_some(None))
    }
}

/// A pod's states with the time each began.
#[derive(Debug)]
pub struct Timeline {
    states: RwLock<Vec<(u64, State)>>,
}

impl Timeline {
    /// From now on.
    pub fn new(state: State) -> Self {
        Self {
            states: RwLock::new(vec![(now(), state)]),
        }
    }

    /// Changes what may be the case.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        let mut states = self.states.write();
        let mut state = states.last().map(|(_, state)| *state).unwrap_or_default();
        change(&mut state);
        // The time is read with the lock held: times never go back.
        states.push((now(), state));
    }

    /// Everything that may have been the case at some time between two.
    pub fn between(&self, [start, end]: [u64; 2]) -> State {
        let states = self.states.read();
        let after = states.partition_point(|(time, _)| *time <= end);
        let first = states.partition_point(|(time, _)| *time <= start);
        states[first.saturating_sub(1)..after]
            .iter()
            .fold(State::default(), |all, (_, state)| all.or(*state))
    }
}
