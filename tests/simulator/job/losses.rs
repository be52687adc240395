//! What a job loses: hosts that die, and hosts that are cut off for a while.

use clonos::agent::protocol::Ending;

use super::{Check, Job};
use crate::attempt::{Attempt, task_id};
use crate::silence::Cut;

impl Job {
    /// Hosts are cut off for a while, and are back. That one may be taken for dead meanwhile counts as a loss, until it
    /// is back and was not.
    pub(super) fn cut_off_or_back(&mut self) {
        let was_cut = !self.cluster.cuts.is_empty();
        self.cut_off();
        self.bring_back();
        let waits = std::mem::take(&mut self.cluster.waits);
        if !was_cut && !waits {
            return;
        }
        for dead in self.cluster.beat() {
            self.note(|| format!("host {dead} is told that it is dead"));
            self.crash_host(dead);
        }
        self.look_for_attempts();
    }

    /// As `Handler::look_for`, at all hosts.
    fn look_for_attempts(&mut self) {
        for number in 0..self.cluster.hosts.len() {
            if !self.cluster.reaches_registry(number) || !self.cluster.hears_registry(number) {
                continue;
            }
            let agent = self.cluster.hosts[number].info.id;
            let mut attempts = self.cluster.registry.waited_for(agent);
            attempts.retain(|attempt| {
                let mut here = self.running.iter().map(|running| &running.session);
                !here.any(|here| (&here.task, here.grant.generation) == (&attempt.0, attempt.1))
            });
            self.cluster.registry.over(agent, &attempts);
        }
    }

    fn cut_off(&mut self) {
        // There are always as many others as copies are wanted.
        let cuts_max = self.cluster.hosts.len() - 1 - self.setting.depth;
        let may_be = !self.cluster.is_paused(0) && self.cluster.cuts.len() < cuts_max;
        let are_wanted = self.setting.crashes > 0 && may_be;
        if !are_wanted || self.dice.below(self.setting.calm) > 0 {
            return;
        }
        let host = self.cluster.any_host(&mut self.dice);
        // Who is back while the driver is paused is not told whether it counts as dead.
        let driver_may_pause = self.cluster.cuts.is_empty();
        let cut = match self.dice.chance(10) && driver_may_pause {
            true => Cut::of_driver(),
            false => Cut::of_some(host, self.cluster.hosts.len(), &mut self.dice),
        };
        let Cut { host, .. } = cut;
        let is_cut = self.cluster.cuts.iter().any(|cut| cut.host == host);
        if is_cut || (cut.may_kill() && self.crashes >= self.setting.crashes) {
            return;
        }
        self.crashes += usize::from(cut.may_kill());
        self.note(|| format!("host {host} is cut off: {:?}", cut.way));
        self.cluster.cuts.push(cut);
    }

    fn bring_back(&mut self) {
        let dice = &mut self.dice;
        let (back, cuts) = self.cluster.cuts.iter().partition(|_| dice.below(40) == 0);
        self.cluster.cuts = cuts;
        for Cut { host, .. } in &back {
            self.note(|| format!("host {host} is back"));
            self.cluster.driver_goes_on |= *host == 0;
        }
        self.crashes -= back.iter().filter(|cut: &&Cut| cut.may_kill()).count();
    }

    /// An attempt came to nothing; its agent says so.
    pub(super) fn is_over(&mut self, attempt: &Attempt) {
        // If it is not told, it is asked.
        let _told = self.cluster.close(&attempt.session, Ending::default());
    }

    /// Once everybody is back, there are as many copies of what was published as are wanted, whatever was lost before.
    pub(super) fn check_number_of_copies(&mut self) -> Check {
        if !self.bounded() {
            return Ok(());
        }
        self.cluster.cuts.clear();
        // As long as an attempt may be on its way that nobody has heard of, and some more.
        for _ in 0..40 {
            if self.has_too_few().is_none() {
                break;
            }
            for dead in self.cluster.beat() {
                self.crash_host(dead);
            }
            self.look_for_attempts();
            (0..self.cluster.hosts.len()).for_each(|host| self.cluster.repair(host));
        }
        self.has_too_few().map_or(Ok(()), Err)
    }

    fn has_too_few(&mut self) -> Option<String> {
        for partition in 0..self.setting.tasks[self.last()] {
            let task = task_id(self.last(), partition);
            let is_live = self.running.iter().any(|attempt| attempt.session.task == task);
            let copies = self.cluster.copies(&task);
            if !is_live && copies <= self.setting.depth {
                return Some(format!("of the log of {task} there are {copies} copies"));
            }
        }
        None
    }

    pub(super) fn crash(&mut self) {
        let host = self.cluster.any_host(&mut self.dice);
        self.crash_host(host);
        // Several at once, sometimes.
        if self.crashes < self.setting.crashes && self.dice.chance(30) {
            let host = self.cluster.any_host(&mut self.dice);
            self.crash_host(host);
        }
    }

    pub(super) fn crash_host(&mut self, host: usize) {
        self.crashes += 1;
        self.note(|| format!("host {host} dies"));
        self.cluster.crash(host);
        self.running.retain(|attempt| attempt.session.host != host);
        self.outputs.retain(|_, output| output.host != host);
        for attempt in &mut self.running {
            let before = attempt.inputs.len();
            attempt.inputs.retain(|(on, _)| *on != host);
            attempt.cut_short |= attempt.inputs.len() < before;
        }
    }
}
