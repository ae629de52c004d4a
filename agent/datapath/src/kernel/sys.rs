//! System calls without a safe wrapper elsewhere: one file per concept of the kernel.
//!
//! bpf(2) is called directly because aya 0.14 cannot convert sockopt links for pinning and updates XDP
//! and TC links only; all hooks use the same calls.
//!
//! Every function is a thin, safe wrapper. Arguments are borrowed for the call, results are owned
//! descriptors, errors carry errno. Source: bpf(2), include/uapi/linux/bpf.h.

mod call;
mod links;
mod maps;
mod messages;
mod namespaces;
mod objects;
mod processes;
mod programs;

pub use self::{
    links::{
        Order, iterate, iterate_map, link_cgroup, link_create, link_create_ingress, link_detach,
        link_ifindex, link_info, link_netns, link_program_in_netns, link_update, read_iterator,
    },
    maps::{
        map_batch, map_create, map_delete, map_freeze, map_info, map_lookup, map_next_key,
        map_take, map_update, storage_map_create,
    },
    messages::{message_sockets, receive_message, send_message},
    namespaces::{namespace_type, netns_cookie, owning_user_namespace, socket_option_u64},
    objects::{open_pin, open_pinned_map_to_read, pin},
    processes::{descriptor_of, keep_little_memory, trim_heap},
    programs::{
        AttachedPrograms, attach_alone, attach_to_sockets, attached_programs, btf_load, program_id,
        program_load, program_name,
    },
};
