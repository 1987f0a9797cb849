//! Starting the agents of hosts, this one and others, and letting them go.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::Launcher;
use super::starts::millis;
use crate::channel::{ChannelPurpose, Polled};
use crate::error::{Error, Result};
use crate::launch::agent_listener::AgentListener;
use crate::launch::bootstrap::Bootstrap;
use crate::launch::hosts::is_this_host;
use crate::launch::output::{Lines, Tail};
use crate::launch::socket::Socket;
use crate::launch::ssh;

/// One agent: the process that we started for it, and the channel once there is one.
#[derive(Default)]
pub(super) struct AgentHandle {
    /// The host, as the user calls it.
    pub(super) name: String,
    /// Whether it is this host.
    pub(super) is_local: bool,
    pub(super) channel: Option<Polled<Socket>>,
    pub(super) child: Option<Child>,
    /// What ssh and the agent itself say.
    pub(super) complaints: Option<(OwnedFd, Lines)>,
    pub(super) last_complaint: Tail,
    /// How much of the task has been sent, once it is wanted.
    pub(super) fed_bytes: Option<u64>,
}

impl Launcher<'_> {
    /// Starts the agents of a job with a fixed size.
    pub(super) fn start_agents(&mut self, now: Instant) -> Result<()> {
        let names: Vec<String> = self.spec.placement.hosts().iter().map(|host| host.name.clone()).collect();
        let hosts = names.iter().enumerate();
        let others: Vec<&str> =
            hosts.filter(|(host, _)| !self.spec.placement.is_local(*host)).map(|(_, name)| name.as_str()).collect();
        if !others.is_empty() {
            self.agent_listener = Some(AgentListener::open(&self.spec, &others)?);
        }
        for (host, name) in names.into_iter().enumerate() {
            self.lines.push(self.start_one(host, name)?);
            self.say_if_not_started(host, now);
        }
        Ok(())
    }

    /// Starts the agent of a host of an elastic job, which may have had one before. What goes wrong concerns only that
    /// host.
    pub(super) fn start_agent(&mut self, host: usize, name: String, now: Instant) {
        while self.lines.len() <= host {
            self.lines.push(AgentHandle::default());
        }
        self.drop_agent(host);
        let started = self.listen_for(&name).and_then(|()| self.start_one(host, name.clone()));
        self.lines[host] = started.unwrap_or_else(|error| {
            let mut line = AgentHandle { name, ..AgentHandle::default() };
            line.last_complaint.push(error.to_string().as_bytes());
            line
        });
        self.say_if_not_started(host, now);
    }

    /// Closes the channel to an agent, and lets its process go.
    pub(super) fn drop_agent(&mut self, host: usize) {
        let Some(line) = self.lines.get_mut(host) else { return };
        line.channel = None;
        if let Some(mut child) = line.child.take() {
            // An ssh, or an agent that has nothing to do any more: neither has anything to lose.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Listens where this host can call back.
    fn listen_for(&mut self, name: &str) -> Result<()> {
        if is_this_host(name) {
            return Ok(());
        }
        match &mut self.agent_listener {
            Some(listener) => listener.also_towards(&self.spec, name),
            None => {
                self.agent_listener = Some(AgentListener::open(&self.spec, &[name])?);
                Ok(())
            }
        }
    }

    fn say_if_not_started(&mut self, host: usize, now: Instant) {
        if self.lines[host].child.is_none() {
            let how = self.lines[host].last_complaint.last().unwrap_or("ssh cannot be started").to_owned();
            self.supervision.agent_gone(host, how, now);
        }
    }

    fn start_one(&self, host: usize, name: String) -> Result<AgentHandle> {
        let program = std::env::current_exe().map_err(|error| Error::local("finding this program's file", error))?;
        let is_local = is_this_host(&name);
        let line = match is_local {
            true => self.start_here(host, &program)?,
            false => self.start_there(host, &name, &program),
        };
        Ok(AgentHandle { name, is_local, ..line })
    }

    /// The agent of this host talks through a pair of sockets that nobody else has.
    fn start_here(&self, host: usize, program: &Path) -> Result<AgentHandle> {
        let starting = |error| Error::local("starting the agent of this host", error);
        let (mut ours, theirs) = UnixStream::pair().map_err(starting)?;
        ours.write_all(&self.bootstrap(host, Vec::new()).to_bytes()).map_err(starting)?;
        let mut command = Command::new(program);
        // In a group of its own: Ctrl-C at the terminal is for the launcher to pass on.
        command.arg("agent").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(starting)?;
        let channel = Polled::accept(Socket::from(ours), &self.key, ChannelPurpose::Agent).map_err(starting)?;
        Ok(AgentHandle { channel: Some(channel), child: Some(child), ..AgentHandle::default() })
    }

    fn start_there(&self, host: usize, name: &str, program: &Path) -> AgentHandle {
        let probe_addresses = self.agent_listener.as_ref().map_or(Vec::new(), AgentListener::addresses);
        let mut line = AgentHandle::default();
        let mut command = ssh::agent_command(&self.spec.ssh, name, program, self.spec.start_timeout);
        let started = command.process_group(0).spawn().and_then(|mut child| {
            if let Some(stdin) = &mut child.stdin {
                // An error here means that ssh has exited. Its exit is reported with its last line on stderr, which
                // names the cause, so the error itself is dropped.
                let _ = stdin.write_all(&self.bootstrap(host, probe_addresses).to_bytes());
            }
            if let Some(stderr) = child.stderr.take() {
                rustix::io::ioctl_fionbio(&stderr, true)?;
                line.complaints = Some((stderr.into(), Lines::default()));
            }
            Ok(child)
        });
        match started {
            Ok(child) => line.child = Some(child),
            Err(error) => line.last_complaint.push(format!("ssh cannot be started: {error}").as_bytes()),
        }
        line
    }

    fn bootstrap(&self, host: usize, launcher: Vec<std::net::SocketAddr>) -> Bootstrap {
        Bootstrap {
            key: self.key.to_hex(),
            host: host as u32,
            hosts: self.hosts() as u32,
            launcher,
            silence_ms: millis(self.spec.silence),
            patience_ms: millis(self.spec.start_timeout),
            network: self.spec.network.clone(),
        }
    }

    /// How many hosts the job has, or may have.
    fn hosts(&self) -> usize {
        match &self.spec.elastic {
            Some(elastic) if !super::starts::is_on_one_host(elastic) => elastic.hosts.len().max(2),
            _ => self.spec.placement.hosts().len(),
        }
    }
}
