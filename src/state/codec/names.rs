//! What types are called in messages: as Spark's `simpleString` has them, for these are what a program declares.

use std::fmt::{self, Display, Formatter};

use arrow_schema::{DataType, FieldRef, Fields, IntervalUnit, TimeUnit};

/// A type by the name that Spark's SQL has for it; by Arrow's if there is none.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a>(pub &'a DataType);

impl Display for Named<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let of = |field: &FieldRef| Named(field.data_type()).to_string();
        let simple = match self.0 {
            DataType::Null => "void",
            DataType::Boolean => "boolean",
            DataType::Int8 => "tinyint",
            DataType::Int16 => "smallint",
            DataType::Int32 => "int",
            DataType::Int64 => "bigint",
            DataType::Float32 => "float",
            DataType::Float64 => "double",
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string",
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "binary",
            DataType::Date32 => "date",
            DataType::Time64(TimeUnit::Nanosecond) => "time(6)",
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamp",
            DataType::Timestamp(TimeUnit::Microsecond, None) => "timestamp_ntz",
            DataType::Duration(TimeUnit::Microsecond) => "interval day to second",
            DataType::Interval(IntervalUnit::YearMonth) => "interval year to month",
            DataType::Decimal128(precision, scale) => return write!(out, "decimal({precision},{scale})"),
            DataType::Struct(fields) => return write!(out, "struct<{}>", joined(fields, ":", ",")),
            DataType::List(item) | DataType::LargeList(item) => return write!(out, "array<{}>", of(item)),
            DataType::Map(entry, _) => match entry.data_type() {
                DataType::Struct(pair) if pair.len() == 2 => {
                    let pair: Vec<_> = pair.iter().map(of).collect();
                    return write!(out, "map<{}>", pair.join(","));
                }
                _ => return self.0.fmt(out),
            },
            other => return other.fmt(out),
        };
        out.write_str(simple)
    }
}

/// Fields with their types, as one declares them: `user string, n bigint`.
#[derive(Debug, Clone, Copy)]
pub struct NamedFields<'a>(pub &'a Fields);

impl Display for NamedFields<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&joined(self.0, " ", ", "))
    }
}

fn joined(fields: &Fields, before_type: &str, between: &str) -> String {
    let each =
        fields.iter().map(|field| format!("{}{before_type}{}", field.name(), Named(field.data_type())));
    each.collect::<Vec<_>>().join(between)
}
