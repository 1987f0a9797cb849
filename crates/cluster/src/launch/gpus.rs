//! The GPUs that processes of this host may use, counted without opening CUDA's driver: [`VisibleGpus`].
//!
//! The kernel's module tells of its devices under `/proc/driver/nvidia/gpus`, and each has a file `/dev/nvidiaN`. Where
//! neither is there (WSL, some sandboxes), `nvidia-smi -L` is asked. What `CUDA_VISIBLE_DEVICES` leaves out is not
//! counted, and neither is anything where `NVIDIA_VISIBLE_DEVICES` is `none`.
//!
//! The invariant: a GPU has a *name* that means the same device to every process of the host: its UUID, or the word by
//! which the user named it, or its number where nobody knows more. Opening the driver would start it on every device
//! and take a second; so which of them work, and what they are, is for the doctor and for ranks to find out.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::ask::ask;

/// The variable of CUDA that says which devices a process sees, and in which order.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The variable of NVIDIA's container runtime.
const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// For tests: the UUIDs of GPUs that this host is to have, separated by commas.
const PRETENDED: &str = "FARANDOLE_TEST_GPUS";

/// A driver without persistence mode initialises each device anew, which takes seconds on a large machine.
const SMI_PATIENCE: Duration = Duration::from_secs(20);

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleGpus {
    names: Vec<String>,
    /// The variable that has chosen them, as it is set.
    chosen_by: Option<String>,
}

impl VisibleGpus {
    /// The GPUs that a process with these variables may use. `meanwhile` is called again and again while `nvidia-smi`
    /// is waited for.
    pub fn of_this_host(variable: impl Fn(&str) -> Option<OsString>, meanwhile: &mut dyn FnMut()) -> VisibleGpus {
        VisibleGpus::or_else(variable, || of_smi(meanwhile))
    }

    /// The same as far as the kernel knows, without asking any program.
    pub fn of_the_kernel(variable: impl Fn(&str) -> Option<OsString>) -> VisibleGpus {
        VisibleGpus::or_else(variable, Vec::new)
    }

    fn or_else(
        variable: impl Fn(&str) -> Option<OsString>,
        unknown_to_kernel: impl FnOnce() -> Vec<Option<String>>,
    ) -> VisibleGpus {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let uuids = match text(PRETENDED) {
            Some(pretended) => words(&pretended).map(|uuid| Some(uuid.to_owned())).collect(),
            None => match of_kernel(Path::new("/proc/driver/nvidia/gpus"), Path::new("/dev")) {
                none if none.is_empty() => unknown_to_kernel(),
                some => some,
            },
        };
        choose(&uuids, text(CUDA_VISIBLE_DEVICES), text(NVIDIA_VISIBLE_DEVICES))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// What [`CUDA_VISIBLE_DEVICES`] says in a process that is to see only this one.
    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }

    /// What [`CUDA_VISIBLE_DEVICES`] says in a process that is to see all of them.
    pub fn names(&self) -> String {
        self.names.join(",")
    }

    /// The same GPUs as clients of an MPS daemon name them that was started with [`CUDA_VISIBLE_DEVICES`] as it is set:
    /// numbers count the devices of the daemon, UUIDs stay.
    pub(crate) fn under_mps(&self) -> VisibleGpus {
        let is_number = |name: &String| name.parse::<u32>().is_ok();
        let renumbered =
            |(index, name): (usize, &String)| if is_number(name) { index.to_string() } else { name.clone() };
        VisibleGpus { names: self.names.iter().enumerate().map(renumbered).collect(), ..self.clone() }
    }

    /// How many there are and why, as in `2 GPUs (CUDA_VISIBLE_DEVICES=0,1)`.
    pub fn described(&self) -> String {
        let count = match self.count() {
            0 => "no NVIDIA GPU".to_owned(),
            1 => "1 GPU".to_owned(),
            count => format!("{count} GPUs"),
        };
        self.chosen_by.as_ref().map_or(count.clone(), |chosen_by| format!("{count} ({chosen_by})"))
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// What of these GPUs is to be used. Like CUDA, this ends at the first word that names no device.
fn choose(uuids: &[Option<String>], cuda: Option<String>, runtime: Option<String>) -> VisibleGpus {
    if let Some(runtime) = runtime.filter(|runtime| matches!(runtime.trim(), "none" | "void")) {
        let chosen_by = Some(format!("{NVIDIA_VISIBLE_DEVICES}={runtime}"));
        return VisibleGpus { names: Vec::new(), chosen_by };
    }
    let is_device = |word: &&str| match word.parse::<i64>() {
        Ok(number) => usize::try_from(number).is_ok_and(|number| number < uuids.len()),
        Err(_) if word.starts_with("GPU-") => {
            uuids.iter().any(|uuid| uuid.as_ref().is_none_or(|uuid| uuid.starts_with(word)))
        }
        // A part of a device, which has a UUID of its own that the kernel does not tell.
        Err(_) => word.starts_with("MIG-") && !uuids.is_empty(),
    };
    let (names, chosen_by) = match cuda {
        Some(list) => {
            let names = list.split(',').map(str::trim).take_while(is_device).map(str::to_owned).collect();
            (names, Some(format!("{CUDA_VISIBLE_DEVICES}={list}")))
        }
        None => {
            let name = |(number, uuid): (usize, &Option<String>)| uuid.clone().unwrap_or_else(|| number.to_string());
            (uuids.iter().enumerate().map(name).collect(), None)
        }
    };
    VisibleGpus { names, chosen_by }
}

/// The UUIDs of what the kernel tells of, in the order of PCI addresses, as far as it knows them.
fn of_kernel(told: &Path, files: &Path) -> Vec<Option<String>> {
    let minors = numbered_files(files);
    let mut entries: Vec<_> = fs::read_dir(told).map_or(Vec::new(), |entries| entries.flatten().collect());
    entries.sort_by_key(fs::DirEntry::file_name);
    let informations = entries.iter().filter_map(|entry| fs::read_to_string(entry.path().join("information")).ok());
    let gpus: Vec<Option<String>> = informations
        .filter(|information| {
            // A container may be told of all devices and be given the files of some.
            let minor = field(information, "Device Minor").and_then(|minor| minor.parse().ok());
            minors.is_empty() || minor.is_none_or(|minor: u32| minors.contains(&minor))
        })
        // A device that nobody has used since the machine started has question marks for digits.
        .map(|information| field(&information, "GPU UUID").filter(|uuid| !uuid.contains('?')).map(str::to_owned))
        .collect();
    if gpus.is_empty() { vec![None; minors.len()] } else { gpus }
}

/// The N of all files `nvidiaN`.
fn numbered_files(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("nvidia")?.parse().ok()).collect()
}

/// The value of a line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':')).map(str::trim)
}

/// What `nvidia-smi` lists, where it is installed.
fn of_smi(meanwhile: &mut dyn FnMut()) -> Vec<Option<String>> {
    match ask(Command::new("nvidia-smi").arg("-L"), "", SMI_PATIENCE, meanwhile) {
        Ok(answer) if answer.status.success() => listed(&String::from_utf8_lossy(&answer.stdout)),
        _ => Vec::new(),
    }
}

/// The UUIDs in lines like `GPU 0: NVIDIA H200 (UUID: GPU-…)`. Lines about parts of a device are indented.
fn listed(text: &str) -> Vec<Option<String>> {
    let uuid = |line: &str| {
        let (_, behind) = line.split_once("(UUID: ")?;
        Some(behind.split(')').next()?.trim().to_owned())
    };
    text.lines().filter(|line| line.starts_with("GPU ")).map(uuid).collect()
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;

    use super::*;

    fn chosen(cuda: Option<&str>) -> String {
        let uuids = ["GPU-aa", "GPU-ab", "GPU-b"].map(|uuid| Some(uuid.to_owned()));
        choose(&uuids, cuda.map(str::to_owned), None).names()
    }

    #[test]
    fn cuda_visible_devices_counts_as_it_does_for_cuda() {
        for (list, names) in [
            (None, "GPU-aa,GPU-ab,GPU-b"),
            (Some(""), ""),
            (Some("-1"), ""),
            (Some("2, 0"), "2,0"),
            (Some("1,7,0"), "1"),
            (Some("0,-1,1"), "0"),
            (Some("GPU-b,GPU-ab"), "GPU-b,GPU-ab"),
            (Some("GPU-c"), ""),
            (Some("MIG-1/2,MIG-1/3"), "MIG-1/2,MIG-1/3"),
            (Some("NoDevFiles"), ""),
        ] {
            assert_eq!(chosen(list), names, "{list:?}");
        }
    }

    #[test]
    fn a_runtime_that_was_told_to_hide_all_hides_all() {
        let uuids = [None, Some("GPU-a".to_owned())];
        let hidden = choose(&uuids, None, Some("none".to_owned()));
        assert_eq!((hidden.count(), hidden.described().as_str()), (0, "no NVIDIA GPU (NVIDIA_VISIBLE_DEVICES=none)"));
        let all = choose(&uuids, None, Some("all".to_owned()));
        assert_eq!(all.names(), "0,GPU-a", "a device whose UUID nobody knows has its number");
        assert_eq!(all.described(), "2 GPUs");
    }

    #[test]
    fn clients_of_mps_count_what_its_daemon_sees() {
        let uuids = vec![Some("GPU-a".to_owned()); 4];
        let under = |list: &str| choose(&uuids, Some(list.to_owned()), None).under_mps().names();
        assert_eq!(under("3,1"), "0,1");
        assert_eq!(under("GPU-a,2"), "GPU-a,1");
    }

    #[test]
    fn the_kernel_tells_of_devices_and_files_say_which_of_them_are_here() {
        let (told, files) = (Folder::new(), Folder::new());
        for (address, minor, uuid) in
            [("0000:ab:00.0", 1, "GPU-2"), ("0000:1b:00.0", 0, "GPU-1"), ("0000:cc:00.0", 2, "GPU-????????-????")]
        {
            fs::create_dir(told.join(address)).unwrap();
            let text = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
            fs::write(told.join(address).join("information"), text).unwrap();
        }
        let uuid = |uuid: &str| Some(uuid.to_owned());
        assert_eq!(of_kernel(&told, &files), [uuid("GPU-1"), uuid("GPU-2"), None]);
        for file in ["nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps"] {
            fs::write(files.join(file), "").unwrap();
        }
        assert_eq!(of_kernel(&told, &files), [uuid("GPU-2"), None]);
        assert_eq!(of_kernel(Path::new("/no/such/folder"), &files), [None, None]);
        assert_eq!(of_kernel(Path::new("/no/such/folder"), &told), []);
    }

    #[test]
    fn nvidia_smi_lists_devices_and_their_parts() {
        let text = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-7)\nGPU 1: X (UUID: GPU-2)\n";
        assert_eq!(listed(text), [Some("GPU-1".to_owned()), Some("GPU-2".to_owned())]);
        assert_eq!(listed("No devices were found\n"), []);
    }
}
