//! Whether a report is what `docs/report.schema.json` promises. The tests of the command use this, too.

/// Panics at the first thing in a report that the schema does not allow.
pub(crate) fn fits_report(report: &serde_json::Value, name: &str) {
    let schema = include_str!("../../../../docs/report.schema.json");
    fits(&serde_json::from_str(schema).expect("the schema is JSON"), report, name);
}

/// As much of JSON Schema as ours uses.
fn fits(schema: &serde_json::Value, value: &serde_json::Value, at: &str) {
    use serde_json::Value;
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => panic!("{at}: the schema has no type"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() && kinds.contains(&"integer") => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{at}: {kind} is none of {kinds:?}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    if let Value::Array(items) = value {
        items.iter().enumerate().for_each(|(number, item)| fits(&schema["items"], item, &format!("{at}[{number}]")));
    }
    if let Value::Object(fields) = value {
        let known = schema["properties"].as_object().expect("properties");
        for required in schema["required"].as_array().expect("what is required") {
            assert!(fields.contains_key(required.as_str().expect("a name")), "{at}: {required} is missing");
        }
        for (key, field) in fields {
            let schema = known.get(key).unwrap_or_else(|| panic!("{at}.{key} is not in the schema"));
            fits(schema, field, &format!("{at}.{key}"));
        }
    }
}
