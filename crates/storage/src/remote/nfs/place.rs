//! Which server a URL names, and as whom it is asked: [`NfsPlace`].
//!
//! `nfs://HOST[:PORT]/EXPORT/PATH[?nfsport=&mountport=&uid=&gid=]`. Paths within the storage are those of the server,
//! from its root on; where an export ends and the path begins is for the server to say.

use super::rpc::Caller;

/// A server and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NfsPlace {
    /// `nfs://host` or `nfs://host:port`, for people.
    pub(super) base: String,
    pub(super) host: String,
    /// The port of NFS; asked from the portmapper where there is none.
    pub(super) nfs_port: Option<u16>,
    /// The port of MOUNT; asked from the portmapper where there is none.
    pub(super) mount_port: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// The path of the URL.
    pub(crate) path: String,
}

impl NfsPlace {
    /// Takes a URL apart that was split at `://` and the first `/`.
    pub(crate) fn new(authority: &str, path: &str) -> Result<NfsPlace, String> {
        if authority.contains('@') {
            return Err("an nfs:// URL has no user name: ?uid=NUMBER&gid=NUMBER say who asks".to_owned());
        }
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let nfs_port = port.map(|port| number::<u16>("the port", port)).transpose()?;
        // A pattern may have a question mark of its own; options have an equals sign.
        let (path, options) = match path.rsplit_once('?').filter(|(_, options)| options.contains('=')) {
            Some((path, options)) => (path, options),
            None => (path, ""),
        };
        let mut place = NfsPlace {
            base: format!("nfs://{authority}"),
            host: host.to_owned(),
            nfs_port,
            mount_port: None,
            uid: None,
            gid: None,
            path: path.trim_start_matches('/').to_owned(),
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "nfsport" => place.nfs_port = Some(number(name, value)?),
                "mountport" => place.mount_port = Some(number(name, value)?),
                "uid" => place.uid = Some(number(name, value)?),
                "gid" => place.gid = Some(number(name, value)?),
                _ => return Err(format!("`{name}` is no option of nfs://; there are nfsport, mountport, uid and gid")),
            }
        }
        Ok(place)
    }

    /// What the server is called among caches.
    pub(in super::super) fn identity(&self) -> String {
        format!("nfs://{} {}", self.host, self.nfs_port.unwrap_or_default())
    }

    /// Who asks: this process, unless the URL names somebody else.
    pub(super) fn caller(&self) -> Caller {
        // Servers show it to people, and nothing else.
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let uid = self.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let gid = self.gid.unwrap_or_else(|| rustix::process::getegid().as_raw());
        // The groups are those of this process, and not of somebody else.
        let is_self = self.uid.is_none() && self.gid.is_none();
        let groups = if is_self { rustix::process::getgroups().unwrap_or_default() } else { Vec::new() };
        Caller { machine, uid, gid, groups: groups.into_iter().map(|group| group.as_raw()).collect() }
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} is a number, and not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let place = NfsPlace::new("host", "export/train/a.tar").unwrap();
        assert_eq!((place.host.as_str(), place.nfs_port, place.path.as_str()), ("host", None, "export/train/a.tar"));
        let place = NfsPlace::new("host:2050", "e/shard-??.tar?mountport=20048&uid=7&gid=8").unwrap();
        assert_eq!((place.nfs_port, place.mount_port), (Some(2050), Some(20048)));
        assert_eq!((place.path.as_str(), place.caller().uid, place.caller().gid), ("e/shard-??.tar", 7, 8));
        assert_eq!(place.caller().groups, [0; 0]);
        let place = NfsPlace::new("[::1]:2049", "e?nfsport=1").unwrap();
        assert_eq!((place.host.as_str(), place.nfs_port, place.path.as_str()), ("::1", Some(1), "e"));
        assert_eq!(NfsPlace::new("h", "e/a?.tar").unwrap().path, "e/a?.tar");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(NfsPlace::new("me@host", "e").unwrap_err().contains("no user name"));
        assert!(NfsPlace::new("host:nfs", "e").unwrap_err().contains("the port is a number"));
        assert!(NfsPlace::new("host", "e?vers=4").unwrap_err().contains("`vers` is no option"));
        assert!(NfsPlace::new("host", "e?uid=me").unwrap_err().contains("uid is a number"));
    }
}
