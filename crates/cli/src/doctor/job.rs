//! The job as this process would be part of it: launcher, settings, instruction set, clock, working directory.

use std::env;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use farandole_cluster::Environment;
use farandole_cluster::launch::variables;
use farandole_engine::Config;
use farandole_settings::{self as settings, Effect};
use farandole_tensor::Level;

use super::finding::{Finding, Group};
use super::protection::{self, Aes};

/// Files on a shared disk may come from a clock that is a little ahead of ours.
const FUTURE: Duration = Duration::from_secs(24 * 60 * 60);

/// Sources whose readings cost a system call or more; measuring with them slows down what is measured.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "refined-jiffies", "jiffies"];

/// What decides how a job started here would behave.
#[derive(Debug)]
pub(crate) struct JobChecks {
    /// What the environment says about the rank that this process is, or what is wrong with it.
    pub(crate) environment: Result<String, String>,
    /// The engine's settings, or which of them is wrong.
    pub(crate) settings: Result<Config, String>,
    /// All variables.
    pub(crate) variables: Vec<(String, String)>,
    /// The instruction set, or what is wrong with the wish for one.
    pub(crate) level: Result<Level, String>,
    /// How the time of day compares with the time at which this program was written to disk.
    pub(crate) clock: Clock,
    /// A directory in which the job is to run but which is not here.
    pub(crate) missing_directory: Option<PathBuf>,
}

/// The clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) now: SystemTime,
    /// When this program was written to disk, which is in the past.
    pub(crate) program_written: Option<SystemTime>,
    /// The kernel's name for the source.
    pub(crate) source: Option<String>,
}

impl JobChecks {
    /// Reads this process's environment.
    pub(crate) fn of_this_process(missing_directory: Option<PathBuf>) -> JobChecks {
        JobChecks {
            environment: Environment::from_process()
                .map(|environment| environment.describe())
                .map_err(|error| error.to_string()),
            settings: Config::from_env().map_err(|error| error.to_string()),
            variables: settings::of_this_process(),
            level: Level::wished(settings::SIMD.in_environment().as_deref()),
            clock: Clock::of_this_machine(),
            missing_directory,
        }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.launcher(), self.settings()];
        findings.extend(self.without_effect());
        let protection = self.settings.as_ref().map(|config| config.wire_protection);
        findings.extend(protection.ok().map(|how| protection::finding(how, Aes::of_this_processor())));
        findings.extend([self.simd(), self.clock.finding()]);
        findings.extend(self.missing_directory.as_ref().map(|directory| {
            Finding::problem(
                Group::Job,
                "directory",
                format!("{} is not here", directory.display()),
                "Ranks start in the directory in which the job is started.",
                "share or copy it, or start from a directory that all hosts have.",
            )
        }));
        findings
    }

    fn launcher(&self) -> Finding {
        let why = "This is how a program started from this shell finds out which rank it is.";
        match &self.environment {
            Ok(words) => Finding::ok(Group::Job, "launcher", words, why),
            Err(problem) => {
                let fix = "unset what another job has left in this shell: `env | grep -E 'RANK|SIZE|FARANDOLE'`.";
                Finding::problem(Group::Job, "launcher", problem, why, fix)
            }
        }
    }

    fn settings(&self) -> Finding {
        let why = "Variables change how ranks that are started here work.";
        match &self.settings {
            Ok(_) => {
                let changed: Vec<String> = settings::all()
                    .filter(|setting| matches!(setting.effect, Effect::Does(_)))
                    .filter_map(|setting| {
                        let (variable, value) = setting.written(|name| env::var(name).ok())?;
                        let shown = if variables::looks_secret(variable) { "(not shown)" } else { &value };
                        (value != setting.default).then(|| format!("{variable}={shown}"))
                    })
                    .collect();
                let found = if changed.is_empty() { "all at their defaults".to_owned() } else { changed.join(" ") };
                Finding::ok(Group::Job, "settings", found, why)
            }
            Err(problem) => {
                let variable = problem.split_whitespace().find_map(|word| Some(word.split_once('=')?.0));
                let fix = format!("`unset {}`, or give it a value that it can have.", variable.unwrap_or("it"));
                Finding::problem(Group::Job, "settings", problem, why, fix)
            }
        }
    }

    /// Variables that are set in vain.
    fn without_effect(&self) -> Option<Finding> {
        let lines = settings::notices(self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let why = "These variables of Horovod's or ours do nothing here; docs/settings.md lists all.";
        (!lines.is_empty()).then(|| Finding::note(Group::Job, "unused", lines.join("; "), why))
    }

    fn simd(&self) -> Finding {
        let best = Level::available().max().unwrap_or(Level::Portable);
        let why = "Gradients are added with it; all levels give the same bits.";
        match &self.level {
            Ok(level) if *level < best => {
                let found = format!("{level}, held down by FARANDOLE_SIMD; the processor has {best}");
                Finding::note(Group::Job, "simd", found, why).with_fix("`unset FARANDOLE_SIMD`.")
            }
            Ok(level) => Finding::ok(Group::Job, "simd", format!("{level}, the best of this processor and build"), why),
            Err(problem) => Finding::problem(Group::Job, "simd", problem, why, "`unset FARANDOLE_SIMD`."),
        }
    }
}

impl Clock {
    fn of_this_machine() -> Clock {
        let written = env::current_exe().and_then(|program| program.metadata()?.modified());
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        Clock {
            now: SystemTime::now(),
            program_written: written.ok(),
            source: source.ok().map(|name| name.trim().to_owned()),
        }
    }

    fn finding(&self) -> Finding {
        let time = utc(self.now);
        let ahead = self.program_written.and_then(|written| written.duration_since(self.now).ok());
        if ahead.is_some_and(|ahead| ahead > FUTURE) {
            let found = format!("it is {time} here, before this program was made");
            let why = "Certificates, tickets and build tools go by the time of day.";
            return Finding::problem(Group::Job, "clock", found, why, "as root: `timedatectl set-ntp true`.");
        }
        let why = "Timings and traces read the clock; hosts align theirs by exchanging messages.";
        match self.source.as_deref() {
            Some(source) if SLOW_CLOCKS.contains(&source) => {
                let found = format!("{time}, read from the slow source {source}");
                Finding::note(Group::Job, "clock", found, why).with_fix(
                    "see /sys/devices/system/clocksource/clocksource0/available_clocksource for a better one.",
                )
            }
            Some(source) => Finding::ok(Group::Job, "clock", format!("{time}, source {source}"), why),
            None => Finding::ok(Group::Job, "clock", time, why),
        }
    }
}

/// A point in time as date and time of day, in UTC.
///
/// Days are counted in years that begin in March, so that the day a leap year adds is a year's last, and
/// in periods of 400 years, which all have 146097 days.
fn utc(time: SystemTime) -> String {
    let Ok(since) = time.duration_since(SystemTime::UNIX_EPOCH) else { return "before 1970".to_owned() };
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // 1970-01-01 is day 719468 after 0000-03-01.
    let day = days + 719_468;
    let (period, day_of_period) = (day / 146_097, day % 146_097);
    let year_of_period =
        (day_of_period - day_of_period / 1460 + day_of_period / 36_524 - day_of_period / 146_096) / 365;
    let day_of_year = day_of_period - (365 * year_of_period + year_of_period / 4 - year_of_period / 100);
    // Months from March on have 153 days for every five of them.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * period + year_of_period + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn job() -> JobChecks {
        let clock = Clock { now: at(1_700_000_000), program_written: None, source: None };
        let settings = Ok(Config::default());
        let (environment, variables) = (Ok("none".into()), Vec::new());
        JobChecks { environment, settings, variables, level: Level::wished(None), clock, missing_directory: None }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(utc(at(0)), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(at(951_782_399)), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(at(951_782_400)), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(at(1_709_251_199)), "2024-02-29 23:59:59 UTC");
        assert_eq!(utc(at(4_107_542_400)), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn a_clock_before_the_program_was_made_is_wrong() {
        let clock = |now, source: Option<&str>| Clock {
            now: at(now),
            program_written: Some(at(1_700_000_000)),
            source: source.map(str::to_owned),
        };
        assert_eq!(clock(0, None).finding().state, State::Problem);
        assert_eq!(clock(1_699_999_000, Some("tsc")).finding().state, State::Ok);
        assert_eq!(clock(1_700_000_001, Some("hpet")).finding().state, State::Note);
    }

    #[test]
    fn nonsense_in_the_environment_is_a_problem_that_names_the_variable() {
        assert!(Level::wished(Some("sse9")).unwrap_err().contains("FARANDOLE_SIMD"));
        assert_eq!(Level::wished(Some("portable")), Ok(Level::Portable));
        let nonsense = |name: &str| (name == "FARANDOLE_TIMEOUT_SECONDS").then(|| "soon".to_owned());
        let settings = Config::from_lookup(nonsense).map_err(|error| error.to_string());
        let finding = JobChecks { settings, ..job() }.settings();
        assert_eq!(finding.state, State::Problem);
        assert!(finding.fix.unwrap().contains("`unset FARANDOLE_TIMEOUT_SECONDS`"));
        let half = Environment::from_lookup(|name| (name == "FARANDOLE_RANK").then(|| "0".to_owned())).unwrap_err();
        let finding = JobChecks { environment: Err(half.to_string()), ..job() }.launcher();
        assert_eq!(finding.state, State::Problem);
    }

    #[test]
    fn variables_that_are_set_in_vain_are_noted_with_the_reason() {
        assert!(job().findings().iter().all(|finding| finding.key != "unused"));
        let variables = [("HOROVOD_CYCLE_TIME", "1"), ("FARANDOLE_REPLAI", "0")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let found = JobChecks { variables, ..job() }.without_effect().unwrap();
        assert_eq!(found.state, State::Note);
        assert!(found.found.contains("HOROVOD_CYCLE_TIME has no effect: there is no cycle"), "{}", found.found);
        assert!(found.found.contains("did you mean FARANDOLE_REPLAY?"), "{}", found.found);
    }

    #[test]
    fn a_directory_that_only_the_user_has_is_a_problem() {
        assert!(job().findings().iter().all(|finding| finding.key != "directory"));
        let findings = JobChecks { missing_directory: Some("/home/me/run".into()), ..job() }.findings();
        assert!(findings.iter().any(|finding| finding.key == "directory" && finding.state == State::Problem));
    }
}
