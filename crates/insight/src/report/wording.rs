//! Advice in words: the sentence that says what to change, the commands that do it, and what to take care of.
//!
//! All reports take their words from here. The rules of the verdict choose a [`Recommendation`] and know no command
//! line.

use crate::loss::ranks_text;
use crate::profile::size_text;
use crate::verdict::{ConvertedInput, HotSpot, InputNeeds, Location, Reason, Recommendation, percent_text, time_text};

/// A recommendation in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wording {
    /// What to change, in a sentence or two.
    pub change: String,
    /// The flags, variables or lines of code.
    pub how: Vec<String>,
    /// What to take care of, where the change touches what the model learns.
    pub caution: Option<&'static str>,
}

impl Wording {
    fn new(change: impl Into<String>, how: &[&str]) -> Wording {
        let how = how.iter().map(|line| (*line).to_owned()).collect();
        Wording { change: change.into(), how, caution: None }
    }
}

/// Puts a recommendation into words.
pub fn wording(recommendation: &Recommendation) -> Wording {
    match recommendation {
        Recommendation::ExamineInput { ranks, location, there_ns, elsewhere_ns } => {
            examine_input(ranks, location, *there_ns, *elsewhere_ns)
        }
        Recommendation::RaiseLoaderWorkers { factor } => raise_loader_workers(*factor),
        Recommendation::FeedSamples(needs) => feed_samples(needs),
        Recommendation::PreprocessOffline => preprocess_offline(),
        Recommendation::UseRecordFormat => use_record_format(),
        Recommendation::ReduceOwnCodeOf { ranks, there_ns, elsewhere_ns, hot_spot } => {
            reduce_own_code_of(ranks, *there_ns, *elsewhere_ns, hot_spot.as_ref())
        }
        Recommendation::ReduceOwnCode { lost_percent, hot_spot } => reduce_own_code(*lost_percent, hot_spot.as_ref()),
        Recommendation::SharePhase { phase } => share_phase(phase),
        Recommendation::MovePhase { phase } => move_phase(phase),
        Recommendation::FitThreads { ranks, threads, cores } => fit_threads(*ranks, *threads, *cores),
        Recommendation::ExamineSlowRank { rank, location, useful_ns, others_useful_ns, phase } => {
            examine_slow_rank(*rank, location, *useful_ns, *others_useful_ns, phase.as_deref())
        }
        Recommendation::FreeCores { rank, location, waited_percent, others_waited_percent } => {
            free_cores(*rank, location, *waited_percent, *others_waited_percent)
        }
        Recommendation::MarkPhase { rank } => mark_phase(*rank),
        Recommendation::BalanceBatches => balance_batches(),
        Recommendation::CheckpointInBackground => checkpoint_in_background(),
        Recommendation::EnableOrderReplay => enable_order_replay(),
        Recommendation::RaiseFusionThreshold { operations_per_iteration, mean_bytes, threshold_bytes } => {
            raise_fusion_threshold(*operations_per_iteration, *mean_bytes, *threshold_bytes)
        }
        Recommendation::SubmitTogether { operations_per_iteration, mean_bytes } => {
            submit_together(*operations_per_iteration, *mean_bytes)
        }
        Recommendation::LowerFusionThreshold { iteration_bytes, threshold_bytes } => {
            lower_fusion_threshold(*iteration_bytes, *threshold_bytes)
        }
        Recommendation::CompressCopies => compress_copies(),
        Recommendation::CompressGradients => compress_gradients(),
        Recommendation::Calibrate { ranks, hosts, ranks_by_host } => calibrate(*ranks, *hosts, ranks_by_host),
        Recommendation::UseOneSwitch => use_one_switch(),
        Recommendation::RaiseBatch { factor, doubling_saves_percent } => raise_batch(*factor, *doubling_saves_percent),
        Recommendation::UseOneRank { ranks, speedup, exposed_percent } => {
            use_one_rank(*ranks, *speedup, *exposed_percent)
        }
        Recommendation::CollectAllTraces => collect_all_traces(),
        Recommendation::Nothing(reason) => nothing(reason),
    }
}

/// The command that examines a host.
fn doctor(location: &Location) -> String {
    if location.only_host { "farandole doctor".to_owned() } else { format!("farandole doctor -H {}", location.host) }
}

fn examine_input(ranks: &[usize], location: &Location, there_ns: u64, elsewhere_ns: u64) -> Wording {
    let (names, there, elsewhere) = (ranks_text(ranks), time_text(there_ns), time_text(elsewhere_ns));
    let change = match ranks.len() {
        1 => format!(
            "Only {names} on {} waits so long for input ({there} against {elsewhere} on average), and all wait for it: \
             look at its storage, at its part of the data and at what else runs on its host.",
            location.host
        ),
        _ => format!(
            "Only {names} wait so long for input ({there} on average against {elsewhere}), and all wait for them: look \
             at their storage, at their part of the data and at what else runs on their hosts."
        ),
    };
    Wording::new(change, &[&doctor(location)])
}

fn raise_loader_workers(factor: f64) -> Wording {
    let change = format!(
        "Give every rank more loader workers and let them run ahead: about {factor:.0} times as many keep up with the \
         work, if there are cores for them."
    );
    let how = [
        "torch:      DataLoader(…, num_workers=N, prefetch_factor=4, persistent_workers=True, pin_memory=True)",
        "tensorflow: dataset.map(f, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)",
    ];
    Wording::new(change, &how)
}

fn feed_samples(needs: &InputNeeds) -> Wording {
    let InputNeeds { ranks, workers, fed_per_s, taken_per_s, needed, cores, percent_by_stage, converted } = needs;
    let counted = |count: usize| format!("{count} worker{}", if count == 1 { "" } else { "s" });
    let who = match (*workers, *ranks) {
        (0, 1) => "The program's own thread, without workers, feeds".to_owned(),
        (0, _) => "The own thread of each rank, without workers, feeds".to_owned(),
        (1, 1) => "1 worker feeds".to_owned(),
        (workers, 1) => format!("{workers} workers feed"),
        (1, _) => "1 worker of each rank feeds".to_owned(),
        (workers, _) => format!("{workers} workers of each rank feed"),
    };
    let of_rank = if *ranks == 1 { "the training takes" } else { "each rank takes" };
    let there = cores.map_or_else(String::new, |cores| match *ranks {
        1 => format!(" (of {cores:.0} cores)"),
        _ => format!(" (of {cores:.1} cores for each rank)"),
    });
    let mut change = format!(
        "{who} {fed_per_s:.0} samples/s, {of_rank} {taken_per_s:.0} when it never waits: {}{there}",
        counted(*needed)
    );
    if cores.is_some_and(|cores| *needed as f64 > cores) {
        change += ", which is more than there are";
    }
    if let Some(ConvertedInput { needed, .. }) = converted {
        change += &format!("; or convert the images once: {}", counted(*needed));
    }
    let [reading, decoding, changing] = percent_by_stage;
    change += &format!(
        ". A worker's time is {reading:.0} % reading, {decoding:.0} % decoding, {changing:.0} % changing pixels."
    );
    let mut how = vec![
        format!("farandole train … --workers {needed}"),
        format!("Loader(…, num_workers={needed})   # farandole.data"),
    ];
    how.extend(
        converted.iter().map(|converted| {
            format!("farandole data convert SOURCE FOLDER --to tar --resize {}", converted.shorter_side)
        }),
    );
    Wording::new(change, &how.iter().map(String::as_str).collect::<Vec<_>>())
}

fn preprocess_offline() -> Wording {
    let change = "Preprocess once and offline what does not change from epoch to epoch (decoding, resizing, \
                  upsampling), and leave only random augmentation to the loader.";
    Wording::new(change, &[])
}

fn use_record_format() -> Wording {
    let change = "Read few large files instead of many small ones: a record format, sharded so that each rank reads \
                  its own part, on storage of the host itself if there is room.";
    let how = ["TFRecord, WebDataset or Parquet; one shard or more for each rank: shards[rank::size]"];
    Wording::new(change, &how)
}

/// Ways to do less between steps.
const LESS_OWN_CODE: [&str; 3] = [
    "torch: if step % 100 == 0: log(…)   # with loss.item(), metrics and print() inside",
    "keras: callbacks that work in on_epoch_end instead of on_train_batch_end; \
     model.fit(…, verbose=2 if hvd.rank() == 0 else 0)",
    "any:   queue = queue.Queue(); threading.Thread(target=write_what_comes, args=(queue,), daemon=True).start()",
];

fn reduce_own_code_of(ranks: &[usize], there_ns: u64, elsewhere_ns: u64, hot_spot: Option<&HotSpot>) -> Wording {
    let change = format!(
        "Only {} {} so much code of the script between steps ({} against {} on the others{}), and all wait for it. \
         Logging, an evaluation or a checkpoint on one rank looks like this: do it less often, leave it to a thread, \
         or let each rank do a share of it.",
        ranks_text(ranks),
        if ranks.len() == 1 { "runs" } else { "run" },
        time_text(there_ns),
        time_text(elsewhere_ns),
        most_of_it(hot_spot)
    );
    Wording::new(change, &LESS_OWN_CODE)
}

fn reduce_own_code(lost_percent: f64, hot_spot: Option<&HotSpot>) -> Wording {
    let change = format!(
        "Between steps the script runs code of its own for {} of the time{}: outside of batches, forward, backward, \
         optimizer, evaluation and checkpoints. Do it less often, leave it to a thread, or let one rank do it for all.",
        percent_text(lost_percent),
        most_of_it(hot_spot)
    );
    Wording::new(change, &LESS_OWN_CODE)
}

fn most_of_it(hot_spot: Option<&HotSpot>) -> String {
    hot_spot.map_or_else(String::new, |HotSpot { line, percent }| {
        format!(", most of it at {line} ({} of samples)", percent_text(*percent))
    })
}

fn share_phase(phase: &str) -> Wording {
    let change =
        format!("Let all ranks take part in “{phase}”: each a part of the data, and the results are averaged.");
    let how = [
        "torch:      DataLoader(test_set, sampler=DistributedSampler(test_set, num_replicas=hvd.size(), \
         rank=hvd.rank(), shuffle=False))",
        "tensorflow: model.evaluate(test_set.shard(hvd.size(), hvd.rank())), or the same share in a loop of your own",
        "both:       metric = hvd.allreduce(metric, name=\"test_metric\")",
    ];
    Wording::new(change, &how)
}

fn move_phase(phase: &str) -> Wording {
    Wording::new(format!("Or leave “{phase}” to a job of its own, on one host, that reads the checkpoints."), &[])
}

fn fit_threads(ranks: usize, threads: usize, cores: usize) -> Wording {
    let fitting = (cores / ranks).max(1);
    let how_many = if threads.is_multiple_of(ranks) {
        format!("{} threads each", threads / ranks)
    } else {
        format!("{threads} threads")
    };
    let change = format!(
        "{ranks} ranks with {how_many} share {cores} core{} and push each other aside: give each rank {fitting} \
         thread{}, and cores of its own{}.",
        if cores == 1 { "" } else { "s" },
        if fitting == 1 { "" } else { "s" },
        if ranks > cores { ", with fewer ranks on a host" } else { "" }
    );
    let how = [
        &*format!("farandole run -x OMP_NUM_THREADS={fitting} …; or torch.set_num_threads({fitting}) in the script"),
        &*format!(
            "tensorflow: farandole run -x TF_NUM_INTRAOP_THREADS={fitting} …; or \
             tf.config.threading.set_intra_op_parallelism_threads({fitting}) first of all"
        ),
        &*format!(
            "pinned: farandole run … sh -c 'n=$((FARANDOLE_LOCAL_RANK*{fitting})); exec taskset -c $n-$((n+{})) \
             python train.py'",
            fitting - 1
        ),
    ];
    Wording::new(change, &how)
}

fn examine_slow_rank(
    rank: usize,
    location: &Location,
    useful_ns: u64,
    others_useful_ns: u64,
    phase: Option<&str>,
) -> Wording {
    let why = match phase {
        Some(phase @ "evaluation") => {
            format!("It takes longer in “{phase}”: give every rank the same share of what is evaluated.")
        }
        Some(phase) => format!(
            "It takes longer in “{phase}”: see whether it has more to do there (a larger batch, longer samples, code \
             for this rank alone) or a slower device."
        ),
        None => "See whether it has more to do (a larger batch, longer samples, code for this rank alone) or a slower \
                 device."
            .to_owned(),
    };
    let (host, useful, others) = (&location.host, time_text(useful_ns), time_text(others_useful_ns));
    let change = format!("Rank {rank} on {host} works {useful} where the others need {others}. {why}");
    Wording::new(change, &[&doctor(location)])
}

fn free_cores(rank: usize, location: &Location, waited_percent: f64, others_waited_percent: f64) -> Wording {
    let change = format!(
        "The main thread of rank {rank} on {} had no core in {} of the run although it could have run, those of the \
         others in {}: another program is on its cores. Move that elsewhere, or give the rank cores of its own.",
        location.host,
        percent_text(waited_percent),
        percent_text(others_waited_percent)
    );
    Wording::new(change, &[&doctor(location)])
}

fn mark_phase(rank: usize) -> Wording {
    let change = format!(
        "Rank {rank} is late in few iterations, but long: it does something there that the others do not (evaluation, \
         logging, a checkpoint). Mark it as a phase and this report names it; then share it or move it elsewhere."
    );
    Wording::new(change, &["python: with farandole.phase(\"evaluate\"): …"])
}

fn balance_batches() -> Wording {
    let change = "Another rank is the last one every time: work differs from batch to batch. Give all ranks batches of \
                  the same cost (sort or bucket samples by length), and keep other programs off their cores.";
    Wording::new(change, &[])
}

fn checkpoint_in_background() -> Wording {
    let change = "Write checkpoints behind the training: copy the state, let a thread write the copy, on one rank \
                  only; or write less often.";
    let how = [
        "torch:      state = {k: v.cpu().clone() for k, v in model.state_dict().items()}; \
         Thread(target=torch.save, args=(state, path)).start()",
        "tensorflow: checkpoint.save(path, \
         options=tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True))",
    ];
    Wording::new(change, &how)
}

fn enable_order_replay() -> Wording {
    let change = "Ranks talk about every request because learned orders are switched off: switch them on.";
    let how = ["farandole run --cache-capacity 1024 …; or unset FARANDOLE_REPLAY and HOROVOD_CACHE_CAPACITY"];
    Wording::new(change, &how)
}

fn raise_fusion_threshold(operations_per_iteration: f64, mean_bytes: u64, threshold_bytes: u64) -> Wording {
    let small = small_operations(operations_per_iteration, mean_bytes);
    let megabytes = threshold_bytes >> 20;
    let change = format!("{small}: let more tensors travel together, with a fusion buffer of {megabytes} MB.");
    Wording::new(change, &[&fusion_threshold(threshold_bytes)])
}

fn submit_together(operations_per_iteration: f64, mean_bytes: u64) -> Wording {
    let small = small_operations(operations_per_iteration, mean_bytes);
    let change = format!(
        "{small}: they come one by one, so that nothing can travel together. Submit all of them before waiting for the \
         first."
    );
    let how = [
        "torch: handles = [hvd.allreduce_async_(t, name=n) for n, t in tensors]; \
         [hvd.synchronize(h) for h in handles]",
        "       or hvd.grouped_allreduce_(list of tensors)",
    ];
    Wording::new(change, &how)
}

fn small_operations(operations_per_iteration: f64, mean_bytes: u64) -> String {
    format!(
        "{operations_per_iteration:.0} operations in each iteration carry {} on average, and most of their time is \
         start-up",
        size_text(mean_bytes)
    )
}

fn lower_fusion_threshold(iteration_bytes: u64, threshold_bytes: u64) -> Wording {
    let change = format!(
        "All gradients travel in one piece of {} when the last is there: smaller buckets of {} MB let the first ones \
         travel while the rest is computed.",
        size_text(iteration_bytes),
        threshold_bytes >> 20
    );
    Wording::new(change, &[&fusion_threshold(threshold_bytes)])
}

fn fusion_threshold(bytes: u64) -> String {
    format!("farandole run --fusion-threshold-mb {} …; or FARANDOLE_FUSION_THRESHOLD={bytes}", bytes >> 20)
}

const COMPRESSION: &str = "hvd.DistributedOptimizer(…, compression=hvd.Compression.fp16)   # or hvd.Compression.bf16";

/// 16-bit gradients are rounded, and the model learns from them.
const ROUNDED: &str = "gradients are rounded to 16 bits: compare the loss of a few hundred iterations with and without \
                       it, and prefer bfloat16 or loss scaling where small gradients matter";

fn compress_copies() -> Wording {
    let change = "Ranks wait for gradients on their way from the device to the host. Halve them with 16 bits, which \
                  are rounded on the device; or exchange less often, by accumulating gradients.";
    let how = [COMPRESSION, &accumulate(2)];
    Wording { caution: Some(ROUNDED), ..Wording::new(change, &how) }
}

fn compress_gradients() -> Wording {
    let change = "Send gradients with 16 bits instead of 32, which halves the bytes; or train in mixed precision, \
                  which halves them as well and makes the work itself cheaper.";
    let mixed = "mixed precision: torch.autocast(device_type, dtype=torch.bfloat16) around the forward pass";
    Wording { caution: Some(ROUNDED), ..Wording::new(change, &[COMPRESSION, mixed]) }
}

fn accumulate(passes: u32) -> String {
    format!("hvd.DistributedOptimizer(…, backward_passes_per_step={passes})")
}

fn calibrate(ranks: usize, hosts: usize, ranks_by_host: &[(String, usize)]) -> Wording {
    let change = if hosts > 1 && ranks > hosts {
        "Measure once which algorithm suits these hosts (ring, halving, tree, or hierarchical: within the hosts first, \
         then between them); jobs of this shape use the table from then on."
    } else {
        "Measure once which algorithm suits this machine; jobs of this shape use the table from then on."
    };
    let how = if hosts == 1 {
        format!("farandole calibrate -np {ranks}")
    } else {
        // Inside a job it measures between the job's hosts.
        let list: Vec<String> = ranks_by_host.iter().map(|(host, ranks)| format!("{host}:{ranks}")).collect();
        format!("farandole run -np {ranks} -H {} farandole calibrate", list.join(","))
    };
    Wording::new(change, &[&how])
}

fn use_one_switch() -> Wording {
    let change = "Place the hosts on one switch, where no other traffic gets in the way, and see that the fast \
                  interface is used.";
    Wording::new(change, &["srun --switches=1 …", "farandole run --network-interface ib0 …"])
}

/// A larger batch is another optimisation problem.
const LARGER_BATCH: &str = "a larger batch changes what the model learns: scale the learning rate with a warm-up, and \
                            compare the loss by samples, not by iterations";

fn raise_batch(factor: u32, doubling_saves_percent: f64) -> Wording {
    let change = format!(
        "Give each rank {factor} times as many samples between two exchanges, if memory allows; beyond that a doubling \
         brings less than {doubling_saves_percent:.0} %. Without more memory the same comes from accumulating \
         gradients."
    );
    Wording { caution: Some(LARGER_BATCH), ..Wording::new(change, &[&accumulate(factor)]) }
}

fn use_one_rank(ranks: usize, speedup: f64, exposed_percent: f64) -> Wording {
    let change = format!(
        "Or the model is too small to distribute on this network: {ranks} ranks do the work of {speedup:.1}, and {} of \
         their time is communication. Train it on one rank, or give each rank more work.",
        percent_text(exposed_percent)
    );
    Wording::new(change, &["farandole run -np 1 …"])
}

fn collect_all_traces() -> Wording {
    let change = "Waiting for the ranks that are missing cannot be told from communication, so there is no advice: \
                  bring the traces of all ranks together, and this is divided.";
    let how =
        ["farandole run --trace DIR …   # a folder that all hosts share, or copy the files of all hosts into one"];
    Wording::new(change, &how)
}

/// Why there is nothing to change, with the number that shows it.
fn nothing(reason: &Reason) -> Wording {
    let change = match reason {
        Reason::AnotherWait => {
            "There is nothing to gain here: without this, ranks would wait for something else at the same place."
                .to_owned()
        }
        Reason::Agreement { mean_ns } => format!(
            "There is little to gain: {} for each operation is about what ranks need to tell each other that they are \
             there. It becomes less only with fewer operations, or with more work between them.",
            time_text(*mean_ns)
        ),
        Reason::Packing { mean_ns, mean_bytes } => format!(
            "There is little to gain: {} for each operation of {} on average is what copying between tensors and the \
             buffer takes. Without it, tensors would travel one by one, which costs more. It becomes less only with \
             fewer bytes.",
            time_text(*mean_ns),
            size_text(*mean_bytes)
        ),
        Reason::Transfer { mean_ns, mean_bytes, bus_gb_per_s } => format!(
            "There is little to gain: {} for each operation, on average {}{}, is what bytes take on this way. It \
             becomes less only with fewer bytes, or with more work between two exchanges.",
            time_text(*mean_ns),
            size_text(*mean_bytes),
            bus_gb_per_s.map_or_else(String::new, |speed| format!(" at {speed:.2} GB/s"))
        ),
        Reason::StartAndEnd => "Ranks begin and end at different times. That is paid once: a longer run makes it \
                                smaller, and a window leaves it out."
            .to_owned(),
        Reason::Unrecorded => "This is time in which ranks were blocked and nothing recorded says by what: operations \
                               that were not recorded on all ranks, and threads that were not given a core when they \
                               could go on. A window without the beginning and the end leaves the former out."
            .to_owned(),
        Reason::Input => "Nothing in the recording says what would feed the ranks faster.".to_owned(),
        Reason::OwnCode => {
            "There is little to gain: every script does something between its steps, and so much is usual.".to_owned()
        }
        Reason::Checkpoint => "Nothing in the recording says how checkpoints could take less.".to_owned(),
        Reason::Phase(phase) => format!("Nothing in the recording says how “{phase}” could be shared."),
        Reason::Lateness => "Nothing in the recording says why ranks take differently long.".to_owned(),
    };
    let how: &[&str] = match reason {
        Reason::StartAndEnd | Reason::Unrecorded => &["farandole report DIR --window iterations=10..1000000"],
        Reason::Transfer { .. } => &["farandole profile DIR"],
        _ => &[],
    };
    Wording::new(change, how)
}
