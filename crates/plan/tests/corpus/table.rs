//! What must hold for any text that is taken for a file of measured tables.

use farandole_plan::Topology;
use farandole_plan::choose::Table;
use farandole_plan::cost::Rates;

/// What parses survives its own text, and can be asked for any size.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(tables) = Table::parse_all(text) else { return };
    let again: String = tables.iter().map(Table::to_text).collect();
    assert_eq!(Table::parse_all(&again).as_ref(), Ok(&tables), "tables survive their own text");
    let topology = Topology::from_host_names(&["a", "a", "b"]);
    for table in &tables {
        for point in table.points() {
            let time_us = table.time_us(point.algorithm, point.bytes, &topology, &Rates::TYPICAL);
            assert!(time_us.is_some_and(|time_us| time_us >= 0.0), "what was measured can be compared");
        }
    }
}
