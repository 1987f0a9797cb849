//! Every way in which requests can fail to fit together is found and explained.

use farandole_plan::item::{Item, Placement};
use farandole_plan::request::Batch;
use farandole_plan::validate::{agree_on, refuse_for_horovod};
use farandole_plan::{Collective, Device, Dtype, Rank, ReduceOp, Request};

const SUM: Collective = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };

fn scatter(op: ReduceOp) -> Collective {
    Collective::ReduceScatter { op, prescale: 1.0, postscale: 1.0 }
}

fn ask(collective: Collective, shape: &[u64]) -> Request {
    Request::new("grad", collective, Dtype::F32, shape)
}

fn agree(requests: impl IntoIterator<Item = Request>) -> Result<Item, String> {
    let requests: Vec<Option<Request>> = requests.into_iter().map(Some).collect();
    agree_on(&requests, &[])
}

/// The explanation for two ranks that ask for these.
fn explain(first: Request, second: Request) -> String {
    agree([first, second]).expect_err("these do not fit together")
}

#[track_caller]
fn starts(text: &str, expected: &str) {
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("ensor \"grad\""), "{text}");
}

#[test]
fn what_fits_together_is_agreed() {
    let item = agree([ask(SUM, &[2, 3]), ask(SUM, &[2, 3])]).unwrap();
    assert_eq!((item.shape, item.rows, item.joined), (vec![2, 3], vec![], vec![]));
    let item = agree([ask(Collective::Allgather, &[2, 3]), ask(Collective::Allgather, &[5, 3])]).unwrap();
    assert_eq!((item.shape, item.rows), (vec![0, 3], vec![2, 5]));
    let splits = Collective::Alltoall { splits: Some(vec![1, 4]) };
    let item = agree([ask(splits, &[5]), ask(Collective::Alltoall { splits: None }, &[4])]).unwrap();
    assert_eq!(item.rows, [1, 4, 2, 2]);
    assert!(agree([ask(SUM, &[]), ask(SUM, &[])]).is_ok(), "scalars can be reduced");
    assert!(agree([ask(SUM, &[0, 7]), ask(SUM, &[0, 7])]).is_ok(), "empty tensors are legal");
    assert!(agree([ask(SUM, &[1 << 33]), ask(SUM, &[1 << 33])]).is_ok(), "large tensors are ordinary");
}

#[test]
fn element_types_operations_and_shapes_must_agree() {
    let double = Request { dtype: Dtype::F64, ..ask(SUM, &[2]) };
    let text = explain(ask(SUM, &[2]), double);
    starts(&text, "Mismatched data types: One rank had type float32, but another rank had type float64.");
    assert!(text.contains("float32 on rank 0; float64 on rank 1"), "{text}");
    let text = explain(ask(SUM, &[2]), ask(Collective::Allgather, &[2]));
    starts(&text, "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER.");
    for collective in [SUM, Collective::Broadcast { root: Rank(0) }, scatter(ReduceOp::Sum)] {
        let kind = collective.word().to_uppercase();
        let text = explain(ask(collective.clone(), &[2, 3]), ask(collective, &[3, 3]));
        let expected =
            "tensor shapes: One rank sent a tensor of shape [2, 3], but another rank sent a tensor of shape [3, 3].";
        starts(&text, &format!("Mismatched {kind} {expected}"));
    }
    for collective in [Collective::Allgather, Collective::Alltoall { splits: None }] {
        let kind = collective.word().to_uppercase();
        let text = explain(ask(collective.clone(), &[2, 3]), ask(collective.clone(), &[2]));
        let expected = "tensor shapes: One rank sent a tensor of rank 2, but another rank sent a tensor of rank 1.";
        starts(&text, &format!("Mismatched {kind} {expected}"));
        let text = explain(ask(collective.clone(), &[2, 3]), ask(collective, &[2, 4]));
        let expected = "tensor shapes: One rank sent a tensor with dimension 1 equal to 3, but another rank sent a tensor \
                        with dimension 1 equal to 4.";
        starts(&text, &format!("Mismatched {kind} {expected}"));
    }
}

#[test]
fn reductions_must_agree() {
    let max = Collective::Allreduce { op: ReduceOp::Max, prescale: 1.0, postscale: 1.0 };
    let half = Collective::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 0.5 };
    let text = explain(ask(SUM, &[2]), ask(max, &[2]));
    starts(&text, "Mismatched reduce operations: One rank asked for Sum, but another rank asked for Max.");
    let text = explain(ask(SUM, &[2]), ask(half, &[2]));
    let expected = "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another rank sent \
                    factors (1, 0.5).";
    starts(&text, expected);
    let nan = Collective::Allreduce { op: ReduceOp::Sum, prescale: f64::NAN, postscale: 1.0 };
    assert!(agree([ask(nan.clone(), &[1]), ask(nan, &[1])]).is_ok(), "a factor equals itself");
    let adasum = Collective::Allreduce { op: ReduceOp::Adasum, prescale: 1.0, postscale: 1.0 };
    let of_ints = || Request { dtype: Dtype::I32, ..ask(adasum.clone(), &[2]) };
    starts(&explain(of_ints(), of_ints()), "Adasum needs floating-point tensors, not int32.");
    let text = explain(ask(scatter(ReduceOp::Adasum), &[2]), ask(scatter(ReduceOp::Adasum), &[2]));
    starts(&text, "REDUCESCATTER does not support Adasum.");
}

#[test]
fn roots_must_agree_exist_and_have_data() {
    let from = |root| ask(Collective::Broadcast { root: Rank(root) }, &[2]);
    let text = agree_on(&[Some(from(0)), Some(from(1))], &[Rank(4), Rank(6)]).unwrap_err();
    let expected =
        "Mismatched BROADCAST root ranks: One rank specified root rank 4, but another rank specified root rank 6.";
    starts(&text, expected);
    assert!(text.contains("root 4 on rank 4; root 6 on rank 6"), "ranks are those of the world: {text}");
    starts(&explain(from(2), from(2)), "BROADCAST root rank 2 does not exist in a group of 2 ranks.");
    let text = agree_on(&[Some(from(1)), None], &[]).unwrap_err();
    starts(&text, "BROADCAST root rank 1 has joined and has nothing to send.");
    let item = agree_on(&[Some(from(0)), None], &[]).unwrap();
    assert_eq!(item.joined, [Rank(1)]);
}

#[test]
fn memory_must_be_of_one_kind() {
    let on_gpu = |index| Request { device: Device::Gpu(index), ..ask(SUM, &[2]) };
    let text = explain(ask(SUM, &[2]), on_gpu(0));
    let expected = "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but another rank \
                    specified device GPU.";
    starts(&text, expected);
    assert_eq!(agree([on_gpu(0), on_gpu(3)]).unwrap().device, Placement::Gpu);
}

#[test]
fn scalars_have_no_rows() {
    for collective in [Collective::Allgather, Collective::Alltoall { splits: None }, scatter(ReduceOp::Sum)] {
        let kind = collective.word().to_uppercase();
        let text = explain(ask(collective.clone(), &[]), ask(collective, &[]));
        starts(&text, &format!("Rank 0 tried to {kind} a rank-zero tensor."));
    }
}

#[test]
fn splits_must_add_up() {
    let split = |splits: &[u64], rows| ask(Collective::Alltoall { splits: Some(splits.to_vec()) }, &[rows, 2]);
    let fine = || split(&[1, 1], 2);
    starts(
        &explain(fine(), split(&[1, 2, 3], 6)),
        "Number of entries in splits does not equal number of ranks: 3 for 2.",
    );
    let text = explain(fine(), split(&[3, 2], 4));
    starts(&text, "Sum of splits entries is greater than the first dimension of tensor: [3, 2] for 4 rows.");
    assert!(text.contains("rank 1"), "{text}");
    starts(&explain(fine(), split(&[1, 2], 4)), "Sum of splits entries is less than the first dimension of tensor");
    starts(&explain(fine(), split(&[u64::MAX, 2], 1)), "Sum of splits entries is greater");
    let text = explain(fine(), ask(Collective::Alltoall { splits: None }, &[3, 2]));
    starts(
        &text,
        "splits not provided, but first dimension of tensor is not an even multiple of the number of workers",
    );
}

#[test]
fn batches_must_agree() {
    let in_batch = |members| Request { batch: Some(Batch { name: "g".into(), members }), ..ask(SUM, &[2]) };
    let text = explain(in_batch(2), in_batch(3));
    starts(&text, "Mismatched batches: One rank sent the tensor in batch \"g\" of 2 tensors");
    starts(&explain(in_batch(2), ask(SUM, &[2])), "Mismatched batches");
}

#[test]
fn sizes_beyond_64_bits_are_refused() {
    let huge = || ask(SUM, &[1 << 40, 1 << 40]);
    starts(&explain(huge(), huge()), "Tensor of shape [1099511627776, 1099511627776] is too large");
    let hidden = || ask(SUM, &[0, 1 << 40, 1 << 40]);
    starts(&explain(hidden(), hidden()), "Tensor of shape [0, ");
    let half = || ask(Collective::Allgather, &[1 << 59]);
    let text = agree((0..9).map(|_| half())).unwrap_err();
    starts(&text, "The result is too large");
}

#[test]
fn barriers_agree_whatever_they_carry() {
    let other = Request { dtype: Dtype::I8, ..ask(Collective::Barrier, &[3]) };
    let item = agree([ask(Collective::Barrier, &[]), other.clone()]).unwrap();
    assert!(item.fits(Rank(1), &other));
}

#[test]
fn a_request_fits_an_item_exactly_if_nothing_but_its_priority_changed() {
    let splits = Collective::Alltoall { splits: Some(vec![1, 3]) };
    let originals = [
        ask(SUM, &[4, 3]),
        ask(Collective::Allgather, &[4, 3]),
        ask(Collective::Broadcast { root: Rank(0) }, &[4, 3]),
        ask(Collective::Alltoall { splits: None }, &[4, 3]),
        ask(splits, &[4, 3]),
        ask(scatter(ReduceOp::Average), &[4, 3]),
    ];
    for original in originals {
        let item = agree([original.clone(), original.clone()]).unwrap();
        assert!(item.fits(Rank(1), &Request { priority: 9, ..original.clone() }));
        let batch = Some(Batch { name: "g".into(), members: 1 });
        let others = [
            Request { dtype: Dtype::I32, ..original.clone() },
            Request { shape: vec![2, 3], ..original.clone() },
            Request { shape: vec![4, 4], ..original.clone() },
            Request { shape: vec![4], ..original.clone() },
            Request { shape: vec![], ..original.clone() },
            Request { device: Device::Gpu(0), ..original.clone() },
            Request { collective: Collective::Barrier, ..original.clone() },
            Request { collective: Collective::Alltoall { splits: Some(vec![3, 1]) }, ..original.clone() },
            Request { collective: Collective::Broadcast { root: Rank(1) }, ..original.clone() },
            Request { batch, ..original.clone() },
        ];
        for other in others {
            assert!(!item.fits(Rank(1), &other), "{other:?} is not {original:?}");
        }
    }
}

#[test]
fn joined_ranks_neither_send_nor_receive_rows() {
    let ask = ask(Collective::Alltoall { splits: Some(vec![1, 2, 3]) }, &[6]);
    let item = agree_on(&[Some(ask.clone()), None, Some(ask)], &[]).unwrap();
    assert_eq!(item.rows, [1, 2, 3, 0, 0, 0, 1, 2, 3]);
    assert_eq!(item.rows_sent(Rank(0), Rank(1), 3), 0);
    assert_eq!(item.rows_sent(Rank(0), Rank(2), 3), 3);
}

#[test]
fn groups_that_behave_like_horovod_refuse_what_it_refuses_with_a_joined_rank() {
    let refusal = |collective| refuse_for_horovod(&[Some(ask(collective, &[2])), None]);
    assert_eq!(refusal(SUM), Ok(()));
    assert_eq!(refusal(Collective::Barrier), Ok(()));
    for (collective, word) in [
        (Collective::Allgather, "Allgather"),
        (Collective::Alltoall { splits: None }, "Alltoall"),
        (Collective::Broadcast { root: Rank(0) }, "Broadcast"),
        (scatter(ReduceOp::Sum), "Reducescatter"),
    ] {
        let everybody = [Some(ask(collective.clone(), &[2])), Some(ask(collective.clone(), &[2]))];
        assert_eq!(refuse_for_horovod(&everybody), Ok(()), "nobody has joined");
        starts(&refusal(collective).unwrap_err(), &format!("{word} is not supported with Join at this time."));
    }
}
