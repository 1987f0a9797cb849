//! Parquet files whose headers lie.

use crate::parquet_file::{
    Column, DELTA_BYTES, DELTA_LENGTH, GZIP, PLAIN, RLE_DICTIONARY, SNAPPY, Struct, column, data_page, dictionary_page,
    file, gzip, images, labels, plain_image, varint, with_footer,
};
use crate::{check, read};

#[test]
fn a_good_file_of_this_kind_is_read() {
    assert_eq!(read("good.parquet", &file(&images(), &labels(), 1, 1)).0, Ok(()));
    let plain = plain_image();
    let packed = column(vec![data_page(&gzip(&plain), plain.len() as i64, 1, PLAIN)], GZIP);
    assert_eq!(read("good.parquet", &file(&packed, &labels(), 1, 1)).0, Ok(()));
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    let index = data_page(&[0, 2, 0], 3, 1, RLE_DICTIONARY);
    let image = Column { pages: vec![dictionary, index], has_dictionary: true, compression: 0 };
    assert_eq!(read("good.parquet", &file(&image, &labels(), 1, 1)).0, Ok(()));
    // One length in a block of 128, and its value.
    let lengths = [&[0x80, 1, 4, 1], varint(2 * (plain.len() as u64 - 4)).as_slice(), &plain[4..]].concat();
    let image = column(vec![data_page(&lengths, lengths.len() as i64, 1, DELTA_LENGTH)], 0);
    assert_eq!(read("good.parquet", &file(&image, &labels(), 1, 1)).0, Ok(()));
}

#[test]
fn a_page_that_claims_two_billion_images_is_refused() {
    let plain = plain_image();
    let page = data_page(&gzip(&plain), plain.len() as i64, i64::from(i32::MAX), PLAIN);
    check("rows.parquet", &file(&column(vec![page], GZIP), &labels(), 1, 1), &["are allowed"]);
}

#[test]
fn a_page_that_claims_to_unpack_to_gigabytes_is_refused() {
    let plain = plain_image();
    for compression in [SNAPPY, GZIP, 5, 7] {
        let page = data_page(&gzip(&plain), i64::from(i32::MAX), 1, PLAIN);
        check("page.parquet", &file(&column(vec![page], compression), &labels(), 1, 1), &["are allowed"]);
    }
}

#[test]
fn a_page_that_unpacks_to_more_than_it_claims_is_refused() {
    let plain = plain_image();
    let bomb = gzip(&[plain.as_slice(), &vec![0; 200 << 20]].concat());
    let page = data_page(&bomb, plain.len() as i64, 1, PLAIN);
    check("bomb.parquet", &file(&column(vec![page], GZIP), &labels(), 1, 1), &["unpacks to more"]);
}

#[test]
fn a_dictionary_that_claims_two_billion_values_is_refused() {
    let plain = plain_image();
    let dictionary = dictionary_page(&plain, plain.len() as i64, i64::from(i32::MAX));
    // One index of no bits.
    let data = data_page(&[0, 2, 0], 3, 1, RLE_DICTIONARY);
    let image = Column { pages: vec![dictionary, data], has_dictionary: true, compression: 0 };
    check("dictionary.parquet", &file(&image, &labels(), 1, 1), &["are allowed"]);
}

#[test]
fn a_label_column_that_claims_two_billion_rows_is_refused() {
    let rows = i64::from(i32::MAX);
    let label = column(vec![data_page(&0i32.to_le_bytes(), 4, rows, PLAIN)], 0);
    check("labels.parquet", &file(&images(), &label, 1, rows), &["are allowed"]);
}

#[test]
fn a_label_in_a_dictionary_that_a_run_repeats_is_charged_for_every_row() {
    let name = vec![b'a'; 60_000];
    let plain = [(name.len() as u32).to_le_bytes().as_slice(), &name].concat();
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    let rows = 100_000;
    // A run of the index 0, of no bits.
    let data = [vec![0], varint(rows << 1)].concat();
    let data = data_page(&data, data.len() as i64, rows as i64, RLE_DICTIONARY);
    let label = Column { pages: vec![dictionary, data], has_dictionary: true, compression: 0 };
    let (result, peak) = read("run.parquet", &file(&images(), &label, 6, rows as i64));
    // A thousand rows are decoded before they are charged.
    assert!(peak < 100 << 20, "{peak} bytes were allocated at once ({result:?})");
    assert!(result.unwrap_err().contains("are allowed"));
}

#[test]
fn images_in_a_dictionary_that_a_run_repeats_are_charged_for_every_row() {
    let plain = plain_image();
    let dictionary = dictionary_page(&plain, plain.len() as i64, 1);
    let rows = 200_000;
    let run = |rows: u64| [vec![0], varint(rows << 1)].concat();
    let page = data_page(&run(rows), run(rows).len() as i64, rows as i64, RLE_DICTIONARY);
    let pages = [vec![dictionary], vec![page; 20]].concat();
    let image = Column { pages, has_dictionary: true, compression: 0 };
    let mut file = file(&image, &labels(), 1, 20 * rows as i64);
    // Under this name nothing is taken for labels.
    while let Some(at) = file.windows(5).position(|window| window == b"label") {
        file[at..at + 5].copy_from_slice(b"other");
    }
    check("rows.parquet", &file, &["are allowed"]);
}

#[test]
fn lengths_that_a_page_has_not_got_are_refused() {
    // 2^40 lengths without bits, in one block of 2^62.
    let claimed = [varint(1 << 62), vec![1], varint(1 << 40), vec![0, 0, 0]].concat();
    let refused = |values: &[u8], encoding| {
        let page = data_page(values, values.len() as i64, 1, encoding);
        check("lengths.parquet", &file(&column(vec![page], 0), &labels(), 1, 1), &["claims 1099511627776 lengths"]);
    };
    refused(&claimed, DELTA_LENGTH);
    refused(&claimed, DELTA_BYTES);
    // No prefixes, and then as many lengths.
    refused(&[[0x80, 1, 4, 0, 0].as_slice(), &claimed].concat(), DELTA_BYTES);
}

#[test]
fn a_schema_that_claims_two_billion_columns_is_refused() {
    let schema = [
        Struct::default().text(4, "root").int(5, i64::from(i32::MAX)).done(),
        Struct::default().int(1, 6).int(3, 0).text(4, "image").done(),
    ];
    let footer = Struct::default().int(1, 1).list(2, 12, &schema).long(3, 1).list(4, 12, &[]);
    check("schema.parquet", &with_footer(b"PAR1".to_vec(), &footer.done()), &["more children than follow"]);
}

#[test]
fn a_schema_of_groups_within_groups_does_not_exhaust_the_stack() {
    let mut schema = vec![Struct::default().text(4, "a").int(5, 1).done(); 200_000];
    schema.push(Struct::default().int(1, 6).int(3, 0).text(4, "image").done());
    let footer = Struct::default().int(1, 1).list(2, 12, &schema).long(3, 1).list(4, 12, &[]);
    check("deep.parquet", &with_footer(b"PAR1".to_vec(), &footer.done()), &["nested too deeply"]);
}
