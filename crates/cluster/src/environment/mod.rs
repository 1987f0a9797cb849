//! What a launcher has left for this process in its environment, whichever launcher it was.
//!
//! | variable | meaning |
//! |---|---|
//! | `FARANDOLE_RANK`, `FARANDOLE_SIZE` | this process's rank, from 0, and how many ranks there are |
//! | `FARANDOLE_LOCAL_RANK`, `FARANDOLE_LOCAL_SIZE` | the same among the ranks of this host (may be left out) |
//! | `FARANDOLE_CROSS_RANK`, `FARANDOLE_CROSS_SIZE` | which host of how many this is (may be left out) |
//! | `FARANDOLE_RENDEZVOUS` | where ranks meet: `unix:/path` or `unix:@name`, where a launcher waits for them; or `tcp:host:port`, where rank 0 does |
//! | `FARANDOLE_KEY_FD` | an open descriptor from which the job's key can be read, as 64 hexadecimal digits |
//! | `FARANDOLE_KEY` | the key itself, for launchers that cannot pass descriptors on |
//! | `FARANDOLE_KEY_FILE` | a file with the key (default: `~/.config/farandole/key`) |
//! | `FARANDOLE_JOB` | what tells this job from others that have the same key (default: what the launcher calls it) |
//! | `FARANDOLE_HOST` | which host this is, where its name does not say so (default: machine and boot identity) |
//! | `FARANDOLE_ADDRESS` | the addresses of this host at which other hosts reach it, separated by commas (default: the one on the way to the meeting) |
//! | `FARANDOLE_INTERFACE` | the interfaces whose addresses these are, where none are given (also: `HOROVOD_GLOO_IFACE`) |
//! | `FARANDOLE_HEARTBEAT_TIMEOUT` | after so many seconds of silence a rank is missed (default 5; 0: never) |
//! | `FARANDOLE_ELASTIC`, `FARANDOLE_ELASTIC_*` | that the job is elastic, this process's number in it, and its bounds (`elastic`) |
//! | `FARANDOLE_LOG_LEVEL` | `info` and finer: say on standard error who this process is (also: `HOROVOD_LOG_LEVEL`) |
//!
//! Without `FARANDOLE_RANK` the variables of other launchers are looked for; `launcher` says which, and in what order.
//! With none of any the process is a world of its own, so that a script runs unchanged without a launcher. With some of
//! a launcher's variables set the others must be, too: half a launch is a mistake, and running alone would hide it. The
//! key is never on a command line, where every user of the machine could read it (`key`).
//!
//! Other launchers start processes but do not introduce them. Then rank 0 hosts the meeting: on one host behind a
//! socket that only this user's processes get through, and nobody needs to be given a key (`local_key`); across hosts
//! at an address that the launcher or the user names, with a key from the user. [`Environment::open`] does what is
//! needed (`rendezvous_access`).

mod ancestor;
mod elastic;
mod hosts;
mod key;
mod launcher;
mod local_key;
mod rendezvous_access;
mod route;
mod slurm;
mod variables;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::IpAddr;
use std::sync::Once;

use farandole_plan::Rank;
use farandole_settings as settings;
use farandole_transport::{JobId, Key};

pub use elastic::{ELASTIC_MAX_NP, ELASTIC_MEMBER, ELASTIC_MIN_NP, ElasticMember, RESTART, VOTES_FD};
pub use launcher::{Launcher, RankPosition, StoreRank};
pub use rendezvous_access::RendezvousAccess;

use crate::error::{Error, Result};
use crate::rendezvous::Address;
use launcher::Launch;
use variables::{Variables, wrong};

/// The variable that holds the rank.
pub const RANK: &str = "FARANDOLE_RANK";
/// The variable that holds the number of ranks.
pub const SIZE: &str = "FARANDOLE_SIZE";
/// The variable that holds the rank among those of its host.
pub const LOCAL_RANK: &str = "FARANDOLE_LOCAL_RANK";
/// The variable that holds the number of ranks of this host.
pub const LOCAL_SIZE: &str = "FARANDOLE_LOCAL_SIZE";
/// The variable that says which of the hosts this is.
pub const CROSS_RANK: &str = "FARANDOLE_CROSS_RANK";
/// The variable that holds the number of hosts.
pub const CROSS_SIZE: &str = "FARANDOLE_CROSS_SIZE";
/// The variable that says where ranks meet.
pub const RENDEZVOUS: &str = "FARANDOLE_RENDEZVOUS";
/// The variable that names the descriptor with the job's key.
pub const KEY_FD: &str = "FARANDOLE_KEY_FD";
/// The variable that holds the job's key.
pub const KEY: &str = settings::KEY.name;
/// The variable that names the file with the job's key.
pub const KEY_FILE: &str = settings::KEY_FILE.name;
/// The variable that names the job.
pub const JOB: &str = settings::JOB.name;
/// The variable that names the host.
pub const HOST: &str = settings::HOST.name;
/// The variable that holds the address at which other hosts reach this one.
pub const ADDRESS: &str = settings::ADDRESS.name;

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Who said so.
    pub launcher: Launcher,
    /// Its rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub size: usize,
    /// This rank among those of its host, where the launcher says so. What counts is what ranks find out when they
    /// meet.
    pub local: Option<RankPosition>,
    /// This host among the hosts, where the launcher says so.
    pub cross: Option<RankPosition>,
    /// What the user or the launcher calls this job; the same on all its ranks.
    pub job: Option<JobId>,
    /// Where they meet; `None` in a world of one.
    pub rendezvous: Option<RendezvousPoint>,
    /// Identity of the host: ranks with equal ones share memory.
    pub host: String,
    /// Where other hosts reach this one, if somebody has said so.
    pub addresses: Vec<IpAddr>,
    /// Which member of an elastic job this process is, if it is one. Then rank and size only say how the job was meant
    /// to begin.
    pub elastic: Option<ElasticMember>,
}

/// Where the ranks of a job meet, who hosts the meeting, and what proves that a rank belongs to it.
#[derive(Clone, Debug)]
pub enum RendezvousPoint {
    /// A launcher of ours waits for the ranks.
    AtLauncher {
        /// The place.
        address: Address,
        /// The proof.
        key: Key,
    },
    /// Rank 0 waits for the others, at a TCP address.
    AtRankZero {
        /// The place.
        address: Address,
        /// The proof.
        key: Key,
    },
    /// All ranks are on this host. Rank 0 makes a key and sends it to processes of the same user.
    OnThisHost {
        /// Name of the key socket, an abstract Unix socket.
        key_socket: String,
    },
}

impl Environment {
    /// Reads the environment of this process.
    pub fn from_process() -> Result<Environment> {
        Environment::from_lookup(|variable| env::var(variable).ok())
    }

    /// Reads an environment that is given as a function.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Environment> {
        let variables = Variables::new(&lookup);
        Environment::of_launch(variables, launcher::detect(variables)?)
    }

    /// The environment of a rank that knows its number, and where to meet the others, from elsewhere: a store that they
    /// share. What a launcher says is not asked for; addresses and the key are.
    ///
    /// # Errors
    /// If the ranks are on several hosts and there is no key, or a variable makes no sense.
    pub fn from_store(known: StoreRank) -> Result<Environment> {
        let lookup = |variable: &'static str| env::var(variable).ok();
        Environment::of_launch(Variables::new(&lookup), Some(known.launch()))
    }

    /// Who has started this process, as which rank of how many, if somebody has and says so completely. Where the ranks
    /// meet is not asked, and neither is the key.
    pub fn launched() -> Option<(Launcher, Rank, usize)> {
        let lookup = |variable: &'static str| env::var(variable).ok();
        let launch = launcher::detect(Variables::new(&lookup)).ok()??;
        Some((launch.launcher, launch.rank, launch.size))
    }

    fn of_launch(variables: Variables<'_>, launch: Option<Launch>) -> Result<Environment> {
        let host = host_of(variables);
        let mut addresses = read_addresses(variables.text(ADDRESS))?;
        let Some(launch) = launch else {
            let (rank, size) = (Rank(0), 1);
            let launcher = Launcher::Nobody;
            let (local, cross, job, rendezvous, elastic) = (None, None, None, None, None);
            return Ok(Environment { launcher, rank, size, local, cross, job, rendezvous, host, addresses, elastic });
        };
        let rendezvous = find_rendezvous(variables, &launch)?;
        let job = variables.text(JOB).map(|name| JobId::named(&name)).or_else(|| launch.job_id());
        if addresses.is_empty() && matches!(rendezvous, Some(RendezvousPoint::AtRankZero { .. })) {
            addresses = addresses_of_interfaces(variables)?;
        }
        let Launch { launcher, rank, size, local, cross, .. } = launch;
        let elastic = if launcher == Launcher::Farandole { ElasticMember::read(variables)? } else { None };
        Ok(Environment { launcher, rank, size, local, cross, job, rendezvous, host, addresses, elastic })
    }

    /// Who this process is, in one line for logs.
    pub fn describe(&self) -> String {
        let Environment { rank, size, launcher, .. } = self;
        if *launcher == Launcher::Nobody {
            return format!("rank 0 of 1: {launcher} was detected, the process is a world of its own");
        }
        let local = self.local.map(|local| format!(" ({} of {} on this host)", local.index, local.of));
        let job = self.job.map(|job| format!(", job '{job}'")).unwrap_or_default();
        let meets = match &self.rendezvous {
            None => "nobody to meet".to_string(),
            Some(RendezvousPoint::AtLauncher { address, .. }) => format!("meets at {address}"),
            Some(RendezvousPoint::AtRankZero { address, .. }) => format!("meets at {address}, in rank 0"),
            Some(RendezvousPoint::OnThisHost { key_socket }) => format!("meets at unix:@{key_socket}, in rank 0"),
        };
        format!("rank {rank} of {size}{}{job}, started by {launcher}; {meets}", local.unwrap_or_default())
    }

    /// Says who this process is on standard error, if the user wants to know.
    pub fn log(&self) {
        log::info!("{}", self.describe());
    }

    /// Says on standard error which variables are set and have no effect, or are unknown. Rank 0 says it for all; where
    /// our launcher started the ranks, it has said it already.
    pub fn warn_of_settings(&self) {
        if self.rank != Rank(0) || matches!(self.rendezvous, Some(RendezvousPoint::AtLauncher { .. })) {
            return;
        }
        // A process may initialise again and again; once is enough.
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            let variables = settings::of_this_process();
            for line in settings::notices(variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
                log::warn!("note: {line}");
            }
        });
    }
}

/// The addresses of the interfaces that the user names, if any.
fn addresses_of_interfaces(variables: Variables<'_>) -> Result<Vec<IpAddr>> {
    let Some((variable, names)) = settings::INTERFACE.written(|name| variables.text(name)) else {
        return Ok(Vec::new());
    };
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let interfaces = if_addrs::get_if_addrs().map_err(|error| Error::local("listing the interfaces", error))?;
    // A link-local address means nothing without the name of an interface on the other side.
    let usable = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut addresses = Vec::new();
    for name in names {
        let of_it = interfaces.iter().filter(|interface| interface.name == name).map(if_addrs::Interface::ip);
        let before = addresses.len();
        addresses.extend(of_it.filter(usable));
        if addresses.len() == before {
            let known: BTreeSet<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
            let known: Vec<&str> = known.into_iter().collect();
            return Err(wrong(
                variable,
                format!("there is no interface '{name}' with an address; there are {}", known.join(", ")),
            ));
        }
    }
    Ok(addresses)
}

fn read_addresses(text: Option<String>) -> Result<Vec<IpAddr>> {
    let read = |word: &str| {
        word.trim()
            .parse()
            .map_err(|_| wrong(ADDRESS, format!("'{word}' is not an IP address; several are separated by commas")))
    };
    text.iter().flat_map(|text| text.split(',')).map(read).collect()
}

/// Where the ranks of this launch meet. A place that the user names comes first.
fn find_rendezvous(variables: Variables<'_>, launch: &Launch) -> Result<Option<RendezvousPoint>> {
    let named = variables.text(RENDEZVOUS);
    if launch.size == 1 && (named.is_none() || launch.launcher != Launcher::Farandole) {
        return Ok(None);
    }
    let address = match named {
        Some(text) => Some(text.parse().map_err(|problem: String| wrong(RENDEZVOUS, problem))?),
        None if launch.is_on_one_host() => {
            return Ok(Some(RendezvousPoint::OnThisHost { key_socket: local_key::socket_name(launch) }));
        }
        None => launch.rendezvous.clone(),
    };
    let Some(address) = address else { return Err(wrong(RENDEZVOUS, how_to_name_one(launch.launcher))) };
    let key = key::find(variables, launch.launcher)?;
    Ok(Some(match address {
        Address::Tcp(_) => RendezvousPoint::AtRankZero { address, key },
        Address::UnixPath(_) | Address::UnixAbstract(_) => RendezvousPoint::AtLauncher { address, key },
    }))
}

fn how_to_name_one(launcher: Launcher) -> String {
    let pass_on = match launcher {
        Launcher::OpenMpi => "mpirun -x FARANDOLE_RENDEZVOUS=tcp:HOST:PORT",
        Launcher::Mpich => "mpirun -genv FARANDOLE_RENDEZVOUS tcp:HOST:PORT",
        Launcher::Torchrun => {
            return "is not set, and neither are MASTER_ADDR and MASTER_PORT, which would do as well".into();
        }
        Launcher::Nobody | Launcher::Farandole | Launcher::Horovod | Launcher::Slurm | Launcher::Store => {
            "export FARANDOLE_RENDEZVOUS=tcp:HOST:PORT"
        }
    };
    format!(
        "is not set, and {launcher} cannot tell the ranks of several hosts where to meet: {pass_on}, with the host of \
         rank 0 and a free port"
    )
}

/// Which host this process is on: what the user says, or what the machine says.
pub fn this_host() -> String {
    host_of(Variables::new(&|variable| env::var(variable).ok()))
}

fn host_of(variables: Variables<'_>) -> String {
    variables.text(HOST).unwrap_or_else(host_identity)
}

/// What two processes have in common exactly if they run on one machine since the same boot, in one network: the
/// kernel's boot identity, the host's name and the network namespace.
pub fn host_identity() -> String {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string()).unwrap_or_default();
    let name = read("/proc/sys/kernel/hostname");
    format!("{name}/{}/{network}", read("/proc/sys/kernel/random/boot_id"))
}

/// Why two identities of one machine are different hosts; `None` if they are equal or of different machines.
pub fn apart_on_one_machine(one: &str, other: &str) -> Option<&'static str> {
    let parts = |identity: &str| -> Option<[String; 3]> {
        identity.split('/').map(str::to_owned).collect::<Vec<_>>().try_into().ok()
    };
    let ([name, boot, network], [other_name, other_boot, other_network]) = (parts(one)?, parts(other)?);
    match () {
        () if boot.is_empty() || boot != other_boot => None,
        () if network != other_network => Some("network namespaces"),
        () if name != other_name => Some("host names"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn containers_of_one_machine_are_told_from_other_machines() {
        let own = "a/boot-1/net:[1]";
        assert_eq!(apart_on_one_machine(own, own), None);
        assert_eq!(apart_on_one_machine(own, "a/boot-2/net:[2]"), None);
        assert_eq!(apart_on_one_machine(own, "b/boot-1/net:[2]"), Some("network namespaces"));
        assert_eq!(apart_on_one_machine(own, "b/boot-1/net:[1]"), Some("host names"));
        assert_eq!(apart_on_one_machine("a//net:[1]", "a//net:[2]"), None, "the boot is unknown");
        assert_eq!(apart_on_one_machine("host-0", "host-1"), None, "set by the user");
        let namespaces = host_identity();
        assert_eq!(namespaces.split('/').filter(|part| !part.is_empty()).count(), 3, "{namespaces}");
    }

    fn read(variables: &[(&'static str, &str)]) -> Result<Environment> {
        let map: HashMap<&str, String> = variables.iter().map(|(name, value)| (*name, value.to_string())).collect();
        Environment::from_lookup(|variable| map.get(variable).cloned())
    }

    #[test]
    fn nothing_set_is_a_world_of_one() {
        let alone = read(&[]).unwrap();
        assert_eq!((alone.rank, alone.size, alone.launcher), (Rank(0), 1, Launcher::Nobody));
        assert!(alone.rendezvous.is_none());
        assert_eq!(alone.host, host_identity());
        assert!(alone.describe().contains("no launcher"), "{}", alone.describe());
    }

    #[test]
    fn a_launched_rank_knows_everything() {
        let key = Key::random().unwrap();
        let hex = key.to_hex();
        let variables = [
            (RANK, "2"),
            (SIZE, "4"),
            (LOCAL_RANK, "0"),
            (LOCAL_SIZE, "2"),
            (CROSS_RANK, "1"),
            (CROSS_SIZE, "2"),
            (RENDEZVOUS, "unix:@m"),
            (KEY, &hex),
            (HOST, "h1"),
            (ADDRESS, "fd00::7, 10.0.0.7"),
        ];
        let rank = read(&variables).unwrap();
        assert_eq!((rank.rank, rank.size, rank.host.as_str()), (Rank(2), 4, "h1"));
        assert_eq!(
            (rank.local, rank.cross),
            (Some(RankPosition { index: 0, of: 2 }), Some(RankPosition { index: 1, of: 2 }))
        );
        assert_eq!(rank.addresses, ["fd00::7".parse::<IpAddr>().unwrap(), "10.0.0.7".parse().unwrap()]);
        assert_eq!(
            rank.describe(),
            "rank 2 of 4 (0 of 2 on this host), started by farandole's variables; meets at unix:@m"
        );
        let Some(RendezvousPoint::AtLauncher { address, key: found }) = rank.rendezvous else {
            panic!("{:?}", rank.rendezvous)
        };
        assert_eq!((address, found), (Address::UnixAbstract("m".into()), key));
    }

    #[test]
    fn a_meeting_by_tcp_is_hosted_by_rank_zero() {
        let hex = "1".repeat(64);
        let named = (RENDEZVOUS, "tcp:h:1");
        let ours = [(RANK, "0"), (SIZE, "2"), named, (KEY, &hex)];
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), named, (KEY, &hex)];
        for variables in [ours, mpi] {
            let rendezvous = read(&variables).unwrap().rendezvous;
            assert!(matches!(rendezvous, Some(RendezvousPoint::AtRankZero { .. })), "{variables:?}: {rendezvous:?}");
        }
    }

    #[test]
    fn ranks_of_one_host_need_no_key_and_have_the_same_key_socket() {
        let key_socket = |rank: &str, job: &str| {
            let environment = read(&[
                ("OMPI_COMM_WORLD_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("PMIX_NAMESPACE", job),
            ])
            .unwrap();
            assert!(environment.describe().contains("started by Open MPI's mpirun; meets at unix:@farandole-"));
            match environment.rendezvous {
                Some(RendezvousPoint::OnThisHost { key_socket }) => key_socket,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(key_socket("0", "7"), key_socket("1", "7"));
        assert_ne!(key_socket("0", "7"), key_socket("0", "8"));
    }

    #[test]
    fn a_job_of_one_rank_meets_nobody() {
        let one = read(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]).unwrap();
        assert!(one.rendezvous.is_none() && one.launcher == Launcher::OpenMpi);
    }

    #[test]
    fn half_a_launch_is_a_mistake_that_names_the_variable() {
        let hex = "0".repeat(64);
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        for (variables, named) in [
            (&[(RANK, "0")][..], SIZE),
            (&[(SIZE, "2")], RANK),
            (&[(RENDEZVOUS, "unix:@m")], SIZE),
            (&[(RANK, "2"), (SIZE, "2")], RANK),
            (&[(RANK, "x"), (SIZE, "2")], RANK),
            (&[(RANK, "0"), (SIZE, "-1")], SIZE),
            (&[(RANK, "0"), (SIZE, "2")], RENDEZVOUS),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "nowhere")], RENDEZVOUS),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m")], KEY),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m"), (KEY, &hex[1..])], KEY),
            (&[(RANK, "0"), (SIZE, "2"), (RENDEZVOUS, "unix:@m"), (KEY_FD, "987654")], KEY_FD),
            (&[(ADDRESS, "here")], ADDRESS),
            (&mpi, RENDEZVOUS),
            (&[mpi[0], mpi[1], (RENDEZVOUS, "tcp:h:1")], KEY),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")], KEY),
            (&[("RANK", "0"), ("WORLD_SIZE", "2")], RENDEZVOUS),
        ] {
            match read(variables) {
                Err(Error::Environment { variable, .. }) => assert_eq!(variable, named, "{variables:?}"),
                other => panic!("{variables:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn interfaces_stand_for_their_addresses_where_ranks_are_on_several_hosts() {
        let hex = "1".repeat(64);
        let named = |interface: &str| {
            let by_mpi =
                [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), (RENDEZVOUS, "tcp:h:1"), (KEY, &hex)];
            read(&[&by_mpi[..], &[("HOROVOD_GLOO_IFACE", interface)]].concat())
        };
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(named("lo").unwrap().addresses.contains(&loopback));
        let error = named("lo,nic77").unwrap_err().to_string();
        assert!(
            error.starts_with("HOROVOD_GLOO_IFACE: there is no interface 'nic77' with an address; there are "),
            "{error}"
        );
        // Ranks of one host need no address, so the interface need not exist.
        assert!(read(&[("HOROVOD_GLOO_IFACE", "nic77")]).unwrap().addresses.is_empty());
    }
}
