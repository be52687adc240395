//! What a job loses: hosts that die, and hosts that are cut off for a while.

use super::Job;
use crate::silence::Cut;

impl Job {
    /// A host is cut off for a while. That it may be taken for dead meanwhile counts as a loss, until it is back and was not.
    pub(super) fn cut_off_or_back(&mut self) {
        let was_cut = self.cluster.cut.is_some();
        let mut is_back = false;
        match self.cluster.cut {
            None if self.crashes < self.setting.crashes && self.dice.below(self.setting.calm) == 0 => {
                let host = self.cluster.any_host(&mut self.dice);
                let cut = Cut::of_some(host, self.cluster.hosts.len(), &mut self.dice);
                self.crashes += 1;
                self.note(|| format!("host {host} is cut off: {:?}", cut.way));
                self.cluster.cut = Some(cut);
            }
            Some(cut) if self.dice.below(40) == 0 => {
                self.note(|| format!("host {} is back", cut.host));
                self.cluster.cut = None;
                is_back = true;
            }
            _ => {}
        }
        let waits = std::mem::take(&mut self.cluster.waits);
        if !was_cut && !waits {
            return;
        }
        let dead = self.cluster.beat();
        self.crashes -= usize::from(is_back || dead.is_some());
        if let Some(dead) = dead {
            self.note(|| format!("host {dead} is told that it is dead"));
            self.crash_host(dead);
        }
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
