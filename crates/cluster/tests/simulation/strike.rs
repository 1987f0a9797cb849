//! What a fault does to a simulated job.

use farandole_cluster::membership::simulated::{Command, MemberMedium};
use farandole_plan::membership::LossEvidence;

use super::super::faults::Fault;
use super::super::kernel::Kernel;
use super::super::node::{Doing, member};
use super::World;

impl World {
    pub(super) fn strike(&mut self, fault: Fault) {
        self.say(|| format!("{fault:?}"));
        match fault {
            Fault::Kill(node) => self.kill(node),
            Fault::KillWithin(node, writes) => self.kernel.borrow_mut().limit_writes(node, writes.max(1)),
            Fault::Stop(node) => self.nodes[node].stopped = self.nodes[node].alive,
            Fault::Continue(node) => self.resume(node),
            Fault::Leave(node) => {
                if self.nodes[node].is_awake() && self.nodes[node].doing == Doing::Training {
                    self.command(node, Command::Leave);
                }
            }
            Fault::Join => self.join(),
            Fault::Cut(directions) => {
                directions.iter().for_each(|(from, to)| self.kernel.borrow_mut().cut(*from, *to));
            }
            Fault::Heal(directions) => {
                directions.iter().for_each(|(from, to)| self.kernel.borrow_mut().heal(*from, *to));
            }
            Fault::Reset(one, other) => self.disturb(one, other, |kernel, at| kernel.reset(at, &[0, 1])),
            Fault::Finish(one, other) => self.disturb(one, other, Kernel::finish),
            Fault::HalfOpen(one, other) => {
                let side = self.random.below(2) as usize;
                self.disturb(one, other, |kernel, at| kernel.reset(at, &[side]));
            }
            Fault::Damage(one, other) => {
                let all = self.kernel.borrow().between(one, other);
                if !all.is_empty() && one != other {
                    let chosen = all[self.random.below(all.len() as u64) as usize];
                    self.kernel.borrow_mut().damage(chosen);
                }
            }
            Fault::Refuse(node) => self.kernel.borrow_mut().set_refuses(node, true),
            Fault::Accept(node) => self.kernel.borrow_mut().set_refuses(node, false),
            Fault::Doubt { node, about } => {
                let (cause, evidence) = ("doubted".to_owned(), LossEvidence::Doubted);
                self.command(node, Command::Report { member: member(about), evidence, cause });
            }
        }
    }

    /// Middleboxes stand between hosts.
    fn disturb(&mut self, one: usize, other: usize, disturb: impl Fn(&mut Kernel, usize)) {
        let mut kernel = self.kernel.borrow_mut();
        if one == other {
            return;
        }
        for connection in kernel.between(one, other) {
            if kernel.medium(connection) == MemberMedium::Tcp {
                disturb(&mut kernel, connection);
            }
        }
    }
}
