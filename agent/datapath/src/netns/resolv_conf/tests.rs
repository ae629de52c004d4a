use std::{fs, net::IpAddr, os::unix::fs::symlink};

use super::{MAX_BYTES, parse, read_below};

fn servers(text: &str) -> Vec<String> {
    let servers = parse(text.as_bytes());
    servers.iter().map(IpAddr::to_string).collect()
}

#[test]
fn servers_are_read_as_resolvers_do() {
    let text = "# nameserver 10.0.0.1\nsearch a.b\nnameserver 10.96.0.10\r\n nameserver\t::1 x\n\
        nameserver fe80::1%eth0\nnameserver ::ffff:1.2.3.4\nnameserver 10.96.0.10\nnameserver no\nnameserver\n\
        nameserver 0.0.0.0\nnameservers 1.1.1.1\noptions ndots:5";
    assert_eq!(servers(text), ["10.96.0.10", "::1", "fe80::1", "1.2.3.4"]);
    assert_eq!(servers(""), [""; 0]);
    let many: String = (0..100)
        .map(|n| format!("nameserver 10.0.0.{n}\n"))
        .collect();
    assert_eq!(servers(&many).len(), 16);
    assert_eq!(
        parse(b"nameserver 1.1.1.1\n\xff\xfe\nnameserver 2.2.2.2").len(),
        2
    );
}

#[test]
fn only_a_regular_file_below_the_root_is_read() {
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc");
    fs::create_dir(&etc).unwrap();
    let path = etc.join("resolv.conf");
    let read = || read_below(root.path(), "etc/resolv.conf");
    assert!(read().is_err());
    fs::write(&path, "nameserver 1.1.1.1").unwrap();
    assert_eq!(read().unwrap(), b"nameserver 1.1.1.1");
    // A link stays below the root, as systemd-resolved's does.
    fs::rename(&path, root.path().join("stub")).unwrap();
    symlink("/stub", &path).unwrap();
    assert_eq!(read().unwrap(), b"nameserver 1.1.1.1");
    let replace = |to: &str| {
        fs::remove_file(&path).unwrap();
        symlink(to, &path).unwrap();
    };
    // Neither up, nor by a process's root.
    replace("../../../../../../../../etc/passwd");
    assert!(read().is_err());
    replace("/proc/self/root/etc/passwd");
    assert!(read().is_err());
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(read().unwrap_err().to_string().contains("regular file"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(read().is_err());
    fs::remove_dir(&path).unwrap();
    let file = fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    assert!(read().unwrap_err().to_string().contains("64 KiB"));
    file.set_len(MAX_BYTES).unwrap();
    assert_eq!(read().unwrap().len() as u64, MAX_BYTES);
}
