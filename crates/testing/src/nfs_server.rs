//! A real NFS server for tests: [`NfsServer`], which is Debian's NFS-Ganesha with a portmapper.
//!
//! It takes the ports that these services always have, so it runs in namespaces (`namespaces`) only. It may be killed
//! and started again; what clients know of it stays valid, as with any NFS server.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Folder, wait_until};

/// Starting takes a fraction of a second; a machine that tests keep busy takes longer.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A folder that clients may read.
#[derive(Clone, Debug)]
pub struct NfsExport {
    /// The server writes it into handles: an export with another number has other handles.
    pub id: u16,
    /// What is exported.
    pub path: PathBuf,
    /// Who may mount it: `*`, or an address.
    pub clients: String,
    /// More of the server's own options for it.
    pub options: String,
}

impl NfsExport {
    /// For everybody, with the number 1.
    pub fn new(path: &Path) -> NfsExport {
        NfsExport { id: 1, path: path.to_owned(), clients: "*".to_owned(), options: String::new() }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct NfsServer {
    folder: Folder,
    portmapper: Option<Child>,
    server: Option<Child>,
    starts: usize,
}

impl NfsServer {
    /// The port of NFS.
    pub const NFS_PORT: u16 = 2049;
    /// The port of MOUNT.
    pub const MOUNT_PORT: u16 = 20048;

    /// Starts a portmapper and the server, and waits until clients are served.
    pub fn start(exports: &[NfsExport]) -> NfsServer {
        for (program, package) in [("/usr/bin/ganesha.nfsd", "nfs-ganesha"), ("/usr/sbin/rpcbind", "rpcbind")] {
            assert!(Path::new(program).exists(), "this test needs {program}: apt-get install {package}");
        }
        let portmapper = Command::new("/usr/sbin/rpcbind").arg("-f").stdin(Stdio::null()).spawn().unwrap();
        wait_until("the portmapper", START_LIMIT, || TcpStream::connect("127.0.0.1:111").is_ok());
        let mut this = NfsServer { folder: Folder::new(), portmapper: Some(portmapper), server: None, starts: 0 };
        this.start_again(exports);
        this
    }

    /// Starts the server again, after it was killed.
    pub fn start_again(&mut self, exports: &[NfsExport]) {
        assert!(self.server.is_none(), "it runs");
        std::fs::write(self.folder.join("ganesha.conf"), configuration(&self.folder, exports)).unwrap();
        self.starts += 1;
        let log = self.folder.file(&format!("log-{}", self.starts));
        let mut command = Command::new("/usr/bin/ganesha.nfsd");
        command.args(["-F", "-f", &self.folder.file("ganesha.conf"), "-L", &log, "-p", &self.folder.file("pid")]);
        self.server = Some(command.stdin(Stdio::null()).spawn().unwrap());
        let read_log = || std::fs::read_to_string(&log).unwrap_or_default();
        wait_until("the NFS server", START_LIMIT, || {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the NFS server has ended ({ended:?}):\n{}", read_log());
            read_log().contains("NFS SERVER INITIALIZED")
        });
    }

    /// Kills the server, as `kill -9` does.
    pub fn kill(&mut self) {
        end(self.server.take());
    }

    /// Kills the portmapper.
    pub fn kill_portmapper(&mut self) {
        end(self.portmapper.take());
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        self.kill();
        self.kill_portmapper();
    }
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// NFSv3 over TCP alone. Nothing that the server keeps of files is taken for true without a look at them.
fn configuration(folder: &Folder, exports: &[NfsExport]) -> String {
    let mut text = format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {}; MNT_Port = {}; Enable_NLM = false; Enable_RQUOTA = false; \
         Enable_UDP = false; }}\n\
         EXPORT_DEFAULTS {{ SecType = sys; }}\n\
         NFSV4 {{ RecoveryRoot = {}; }}\n",
        NfsServer::NFS_PORT,
        NfsServer::MOUNT_PORT,
        folder.display()
    );
    for NfsExport { id, path, clients, options } in exports {
        let path = path.display();
        writeln!(
            text,
            "EXPORT {{ Export_Id = {id}; Path = {path}; Pseudo = /export{id}; Protocols = 3; Transports = TCP; \
             {options} Squash = No_Root_Squash; Access_Type = None; Attr_Expiration_Time = 0; FSAL {{ Name = VFS; \
             }} CLIENT {{ Clients = {clients}; Access_Type = RO; }} }}"
        )
        .unwrap();
    }
    text
}
