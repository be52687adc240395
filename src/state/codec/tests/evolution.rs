//! Values that were kept under another schema.

use super::*;

fn field(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, true)
}

fn list(kind: DataType) -> DataType {
    DataType::List(Arc::new(field("item", kind)))
}

fn inner(fields: Vec<Field>) -> DataType {
    DataType::Struct(fields.into())
}

fn evolved(from: Vec<Field>, to: Vec<Field>) -> Result<StructArray> {
    let from: Fields = from.into();
    let columns = from.iter().map(|field| array(field.data_type(), 9, &mut Dice(5))).collect();
    evolve("sum", &StructArray::new(from, columns, None), &to.into())
}

#[test]
fn fields_come_go_and_change_places_by_name() {
    let fields: Fields = vec![field("a", DataType::Int32), field("b", DataType::Utf8)].into();
    let a: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let b: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let old = StructArray::new(fields, vec![a, Arc::clone(&b)], None);
    let new = vec![field("c", DataType::Date32), field("b", DataType::Utf8), field("a", DataType::Int64)];
    let new = evolve("sum", &old, &new.into()).unwrap();
    assert_eq!(new.column(0).null_count(), 2);
    assert_eq!(new.column(1), &b);
    assert_eq!(new.column(2).as_ref(), &Int64Array::from(vec![Some(1), None]) as &dyn Array);
    let less = evolve("sum", &new, &vec![field("b", DataType::Utf8)].into()).unwrap();
    assert_eq!(less.columns(), [b]);
}

#[test]
fn numbers_are_widened_wherever_they_are() {
    use DataType::{Float32, Float64, Int16, Int32, Int64};
    for (from, to) in [(Int16, Int64), (Int32, Int64), (Float32, Float64), (Int16, Float32), (Int32, Float64)]
    {
        let nested = |kind: &DataType| {
            let map = array_of_map(kind.clone());
            vec![
                field("l", list(kind.clone())),
                field("s", inner(vec![field("x", list(inner(vec![field("y", kind.clone())])))])),
                field("m", map),
            ]
        };
        let new = evolved(nested(&from), nested(&to)).unwrap();
        assert_eq!(new.fields(), &Fields::from(nested(&to)));
    }
}

#[test]
fn names_of_another_case_are_the_same_unless_both_are_there() {
    let a = || vec![field("a", DataType::Int32)];
    let both = || vec![field("A", DataType::Int32), field("a", DataType::Int32)];
    let new = evolved(a(), vec![field("A", DataType::Int64)]).unwrap();
    assert_eq!(new.column(0).null_count(), evolved(a(), a()).unwrap().column(0).null_count());
    assert_eq!(evolved(a(), both()).unwrap().column(0).null_count(), 9);
    let less = evolved(both(), a()).unwrap();
    assert_eq!(less.column(0), evolved(both(), both()).unwrap().column(1));
}

#[test]
fn what_may_have_been_renamed_is_found_wherever_it_is() {
    let number = |name: &str| field(name, DataType::Int64);
    let nested = |fields: Vec<Field>| {
        let map = array_of_map(inner(fields.clone()));
        [inner(fields.clone()), list(inner(fields)), map].map(|kind| vec![field("s", kind)])
    };
    let found = |from: &[Field], to: &[Field]| renamed(&from.to_vec().into(), &to.to_vec().into());
    let (from, to) = ([number("a"), number("b")], [number("a"), number("c")]);
    let name = Some(("b".to_owned(), "c".to_owned()));
    assert_eq!(found(&from, &to), name);
    for (from, to) in nested(from.to_vec()).iter().zip(&nested(to.to_vec())) {
        assert_eq!(found(from, to), name);
    }
    assert_eq!(found(&[field("b", DataType::Int32)], &[number("c")]), name);
    let inner_of = |name: &str, of: &str| [field(name, inner(vec![number(of)]))];
    assert_eq!(found(&inner_of("b", "x"), &inner_of("c", "y")), name);
    let others = [
        vec![number("b"), number("A")],
        vec![number("a")],
        vec![number("a"), number("b"), number("c")],
        vec![number("a"), field("c", DataType::Utf8)],
    ];
    for other in &others {
        assert_eq!(found(&from, other), None);
    }
}

fn array_of_map(value: DataType) -> DataType {
    let entry = Fields::from(vec![Field::new("key", DataType::Utf8, false), field("value", value)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false)
}

#[test]
fn widths_of_offsets_and_names_of_zones_do_not_count() {
    let zone = |name: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(name.into()));
    let pairs = [
        (DataType::Utf8, DataType::LargeUtf8),
        (DataType::Utf8View, DataType::Utf8),
        (DataType::Binary, DataType::BinaryView),
        (zone("UTC"), zone("Europe/Berlin")),
    ];
    for (from, to) in pairs {
        assert!(same_meaning(&from, &to));
        let new = evolved(vec![field("v", from.clone())], vec![field("v", to.clone())]).unwrap();
        let old = array(&from, 9, &mut Dice(5));
        let bytes = |column: &ArrayRef| encode(std::slice::from_ref(column), 9, &[]).unwrap();
        assert!(bytes(&old).iter().eq(bytes(new.column(0)).iter()));
    }
}

/// Spark's name for it stands before what we say.
const AS_SPARK: &str = r#"state variable "sum": [STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION]"#;

#[test]
fn anything_else_is_refused_with_variable_field_and_types() {
    let zone = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let pairs = [
        (DataType::Int64, DataType::Int32),
        (DataType::Int32, DataType::Utf8),
        (DataType::Int32, DataType::Float32),
        (DataType::Int64, DataType::Float64),
        (DataType::Utf8, DataType::Binary),
        (DataType::Decimal128(9, 2), DataType::Decimal128(9, 3)),
        (zone, DataType::Timestamp(TimeUnit::Microsecond, None)),
        (list(DataType::Int64), DataType::Int64),
    ];
    for (from, to) in pairs {
        let wrap = |kind: &DataType| vec![field("s", inner(vec![field("l", list(kind.clone()))]))];
        let refused = evolved(wrap(&from), wrap(&to)).unwrap_err().to_string();
        assert!(refused.starts_with(&format!(r#"{AS_SPARK} field "s.l.[]" was kept as"#)), "{refused}");
        let types = format!("kept as {}, which does not become {}:", Named(&from), Named(&to));
        assert!(refused.contains(&types), "{refused}");
        assert!(!same_meaning(&from, &to));
    }
    let needed = Field::new("new", DataType::Int32, false);
    let refused = evolved(vec![field("a", DataType::Int32)], vec![needed]).unwrap_err().to_string();
    assert_eq!(refused, format!(r#"{AS_SPARK} field "new" is new, so it must be nullable"#));
}

#[test]
fn types_are_called_as_spark_calls_them() {
    let map = DataType::Map(
        Arc::new(field(
            "entries",
            DataType::Struct(
                vec![Field::new("key", DataType::Utf8, false), field("value", DataType::Date32)].into(),
            ),
        )),
        false,
    );
    let all = inner(vec![
        field("a", list(DataType::Int64)),
        field("m", map),
        field("d", DataType::Decimal128(9, 2)),
        field("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        field("n", DataType::Timestamp(TimeUnit::Microsecond, None)),
        field("i", DataType::Duration(TimeUnit::Microsecond)),
    ]);
    let whole = "struct<a:array<bigint>,m:map<string,date>,d:decimal(9,2),t:timestamp,n:timestamp_ntz,\
                 i:interval day to second>";
    assert_eq!(Named(&all).to_string(), whole);
    let fields = vec![field("user", DataType::LargeUtf8), field("n", DataType::Int32)].into();
    assert_eq!(NamedFields(&fields).to_string(), "user string, n int");
    // A type that Spark does not have keeps Arrow's name.
    assert_eq!(Named(&DataType::UInt8).to_string(), DataType::UInt8.to_string());
}

#[test]
fn nulls_of_structs_stay_where_they_were() {
    let from = inner(vec![field("y", DataType::Int32)]);
    let to = inner(vec![field("z", DataType::Utf8), field("y", DataType::Int64)]);
    let new = evolved(vec![field("s", from.clone())], vec![field("s", to)]).unwrap();
    let old = array(&from, 9, &mut Dice(5));
    assert_eq!(new.column(0).nulls(), old.nulls());
    let _ = concat(&[new.column(0).as_ref(), new.column(0).as_ref()]).unwrap();
}
