//! What must hold for any text that is taken for a table, or for a file that holds one.

use farandole_plan::Topology;
use farandole_plan::choose::{AlgorithmLimits, Choices, Means};
use farandole_plan::cost::Rates;
use farandole_plan::table::{Table, TableFile};

/// What parses survives its own text, and can be asked for any size.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(record) = TableFile::parse(text) {
        assert_eq!(TableFile::parse(&record.to_text()).as_ref(), Ok(&record), "files survive their own text");
    }
    let Ok(mut table) = Table::parse(text) else { return };
    assert_eq!(Table::parse(&table.to_text()).as_ref(), Ok(&table), "tables survive their own text");
    let topology = Topology::from_host_names(&["a", "a", "b"]);
    for point in table.points() {
        let time_us = table.time_us(point.way, point.bytes, &topology, &Rates::TYPICAL);
        assert!(time_us.is_some_and(|time_us| time_us >= 0.0), "what was measured can be compared");
    }
    table.class = farandole_plan::table::Class::of(&topology);
    let choices = Choices::new(Some(table.into()), &topology, AlgorithmLimits::default());
    for bytes in [0, 1, 5000, u64::MAX] {
        let means = Means { windows: true, mapped: false };
        assert!(means.allow(choices.allreduce(bytes, means), &topology), "what is chosen can run");
    }
}
