//! The program on lo by which a pod's DNS queries over UDP reach its sidecar.

use std::collections::BTreeSet;

use anyhow::Result;
use sidetrack_common::pod::LOOPBACK_IFINDEX;
use sidetrack_policy::Policy;
use sidetrack_reconcile::repairs::IngressProgram;

use super::PodLink;
use crate::kernel::Datapath;

/// Attaches it where the policy captures queries. To be called before they are.
///
/// # Errors
/// If it cannot be attached.
pub(super) async fn attach(
    datapath: &mut Datapath,
    link: &mut PodLink,
    policy: &Policy,
) -> Result<()> {
    let Some(block) = policy.dns_block() else {
        return Ok(());
    };
    datapath.load_queries(&mut link.queries, block.port())?;
    let interfaces = BTreeSet::from([LOOPBACK_IFINDEX]);
    link.attach(IngressProgram::Queries, &interfaces).await
}

/// Detaches it where the policy captures none. To be called when they are captured no more.
///
/// # Errors
/// If it cannot be detached.
pub(super) async fn detach(link: &mut PodLink, policy: &Policy) -> Result<()> {
    if policy.dns_block().is_some() {
        return Ok(());
    }
    link.queries.clear()?;
    link.remove_filters(IngressProgram::Queries).await
}
