//! Rows to columns.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, GenericByteArray, LargeListArray, ListArray,
    MapArray, NullArray, OffsetSizeTrait, StringArray, StringViewArray, StructArray, make_array,
    types::{ByteArrayType, GenericBinaryType, GenericStringType},
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, MutableBuffer, NullBufferBuilder, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef, Fields};

use super::encode::fixed_width;
use super::names::Named;
use super::{bitmap_bytes, of_state};
use crate::determinant::codec::{Fields as Reader, corrupt};
use crate::error::{Error, Result};

/// The columns of rows that were encoded under these fields.
///
/// # Errors
/// [`Error::CorruptState`] for bytes that are no such rows; [`Error::UnsupportedType`].
pub fn decode<'a>(fields: &Fields, rows: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<StructArray> {
    read_rows(fields, rows).map_err(of_state)
}

fn read_rows<'a>(fields: &Fields, rows: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<StructArray> {
    let count = rows.len();
    let mut readers: Vec<Reader<'a>> = rows.map(Reader::new).collect();
    let len = bitmap_bytes(fields.len());
    let bitmaps = readers.iter_mut().map(|reader| reader.raw(len)).collect::<Result<Vec<_>>>()?;
    let mut columns = Vec::with_capacity(fields.len());
    for (place, field) in fields.iter().enumerate() {
        let mut column = Column::new(field.data_type(), count)?;
        for (reader, bitmap) in readers.iter_mut().zip(&bitmaps) {
            column.read_if(is_set(bitmap, place), reader)?;
        }
        columns.push(column.finish()?);
    }
    if readers.iter().any(|reader| !reader.is_empty()) {
        return Err(corrupt("a row of state goes on behind its last field"));
    }
    StructArray::try_new_with_length(fields.clone(), columns, None, count).map_err(refused)
}

#[inline]
fn is_set(bitmap: &[u8], place: usize) -> bool {
    bitmap.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
}

fn refused(error: arrow_schema::ArrowError) -> Error {
    corrupt(&format!("rows of state: {error}"))
}

/// A column that is being read.
struct Column {
    kind: DataType,
    nulls: NullBufferBuilder,
    values: Values,
}

enum Values {
    None,
    Booleans(BooleanBufferBuilder),
    Fixed {
        width: usize,
        bytes: MutableBuffer,
    },
    /// Text or bytes: where each ends.
    Bytes {
        ends: Vec<usize>,
        bytes: Vec<u8>,
    },
    Struct {
        fields: Fields,
        columns: Vec<Column>,
    },
    /// Lists, and maps as lists of their entries.
    List {
        field: FieldRef,
        ends: Vec<usize>,
        items: Box<Column>,
        bitmap: bool,
    },
}

impl Column {
    fn new(kind: &DataType, rows: usize) -> Result<Self> {
        let values = match kind {
            DataType::Null => Values::None,
            DataType::Boolean => Values::Booleans(BooleanBufferBuilder::new(rows)),
            DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView => Values::Bytes { ends: Vec::with_capacity(rows), bytes: Vec::new() },
            DataType::Struct(fields) => {
                let columns = fields.iter().map(|field| Self::new(field.data_type(), rows));
                Values::Struct { fields: fields.clone(), columns: columns.collect::<Result<_>>()? }
            }
            DataType::List(field) | DataType::LargeList(field) | DataType::Map(field, _) => {
                let items = Box::new(Self::new(field.data_type(), 0)?);
                let bitmap = !matches!(kind, DataType::Map(..));
                Values::List { field: Arc::clone(field), ends: Vec::with_capacity(rows), items, bitmap }
            }
            kind => {
                let unsupported = || Error::UnsupportedType { data_type: Named(kind).to_string() };
                let width = fixed_width(kind).ok_or_else(unsupported)?;
                Values::Fixed { width, bytes: MutableBuffer::with_capacity(rows.saturating_mul(width)) }
            }
        };
        Ok(Self { kind: kind.clone(), nulls: NullBufferBuilder::new(rows), values })
    }

    #[inline]
    fn read_if(&mut self, is_there: bool, reader: &mut Reader<'_>) -> Result<()> {
        if is_there {
            return self.read(reader);
        }
        self.add_null();
        Ok(())
    }

    /// Reads one value.
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        match &mut self.values {
            Values::None => return Err(corrupt("a value of state is of the type of nulls")),
            Values::Booleans(values) => match reader.byte()? {
                0 => values.append(false),
                1 => values.append(true),
                _ => return Err(corrupt("a boolean of state is neither")),
            },
            Values::Fixed { width, bytes } => bytes.extend_from_slice(reader.raw(*width)?),
            Values::Bytes { ends, bytes } => {
                bytes.extend_from_slice(reader.bytes()?);
                ends.push(bytes.len());
            }
            Values::Struct { columns, .. } => {
                let bitmap = reader.raw(bitmap_bytes(columns.len()))?;
                for (place, column) in columns.iter_mut().enumerate() {
                    column.read_if(is_set(bitmap, place), reader)?;
                }
            }
            Values::List { ends, items, bitmap, .. } => {
                let count = reader.small::<usize>()?;
                // Each item has a bit, or an entry a byte, that was read: bytes bound what is made of them.
                if *bitmap {
                    let bitmap = reader.raw(bitmap_bytes(count))?;
                    for place in 0..count {
                        items.read_if(is_set(bitmap, place), reader)?;
                    }
                } else {
                    for _ in 0..count {
                        items.read(reader)?;
                    }
                }
                ends.push(ends.last().copied().unwrap_or(0) + count);
            }
        }
        self.nulls.append_non_null();
        Ok(())
    }

    fn add_null(&mut self) {
        match &mut self.values {
            Values::None => {}
            Values::Booleans(values) => values.append(false),
            Values::Fixed { width, bytes } => bytes.extend_zeros(*width),
            Values::Bytes { ends, bytes } => ends.push(bytes.len()),
            Values::Struct { columns, .. } => columns.iter_mut().for_each(Self::add_null),
            Values::List { ends, .. } => ends.push(ends.last().copied().unwrap_or(0)),
        }
        self.nulls.append_null();
    }

    fn finish(mut self) -> Result<ArrayRef> {
        let (len, nulls) = (self.nulls.len(), self.nulls.finish());
        Ok(match self.values {
            Values::None => Arc::new(NullArray::new(len)),
            Values::Booleans(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Fixed { bytes, .. } => {
                let data = ArrayData::builder(self.kind).len(len).add_buffer(bytes.into()).nulls(nulls);
                make_array(data.build().map_err(refused)?)
            }
            Values::Bytes { ends, bytes } => text_or_bytes(&self.kind, &ends, bytes, nulls)?,
            Values::Struct { fields, columns } => {
                let columns = columns.into_iter().map(Self::finish).collect::<Result<Vec<_>>>()?;
                Arc::new(StructArray::try_new_with_length(fields, columns, nulls, len).map_err(refused)?)
            }
            Values::List { field, ends, items, .. } => {
                let items = items.finish()?;
                match self.kind {
                    DataType::LargeList(_) => {
                        let array = LargeListArray::try_new(field, offsets(&ends)?, items, nulls);
                        Arc::new(array.map_err(refused)?)
                    }
                    DataType::Map(_, ordered) => {
                        let entries = StructArray::from(items.to_data());
                        let array = MapArray::try_new(field, offsets(&ends)?, entries, nulls, ordered);
                        Arc::new(array.map_err(refused)?)
                    }
                    _ => Arc::new(ListArray::try_new(field, offsets(&ends)?, items, nulls).map_err(refused)?),
                }
            }
        })
    }
}

type Nulls = Option<arrow_buffer::NullBuffer>;

fn text_or_bytes(kind: &DataType, ends: &[usize], bytes: Vec<u8>, nulls: Nulls) -> Result<ArrayRef> {
    Ok(match kind {
        DataType::LargeUtf8 => Arc::new(of_bytes::<GenericStringType<i64>>(ends, bytes, nulls)?),
        DataType::LargeBinary => Arc::new(of_bytes::<GenericBinaryType<i64>>(ends, bytes, nulls)?),
        DataType::Utf8 => Arc::new(of_bytes::<GenericStringType<i32>>(ends, bytes, nulls)?),
        DataType::Utf8View => {
            let array: StringArray = of_bytes(ends, bytes, nulls)?;
            Arc::new(StringViewArray::from(&array))
        }
        DataType::BinaryView => {
            let array: BinaryArray = of_bytes(ends, bytes, nulls)?;
            Arc::new(BinaryViewArray::from(&array))
        }
        _ => Arc::new(of_bytes::<GenericBinaryType<i32>>(ends, bytes, nulls)?),
    })
}

fn of_bytes<T: ByteArrayType>(ends: &[usize], bytes: Vec<u8>, nulls: Nulls) -> Result<GenericByteArray<T>> {
    GenericByteArray::try_new(offsets(ends)?, Buffer::from_vec(bytes), nulls).map_err(refused)
}

fn offsets<O: OffsetSizeTrait>(ends: &[usize]) -> Result<OffsetBuffer<O>> {
    // They ascend, so the last is the largest.
    if ends.last().is_some_and(|end| O::from_usize(*end).is_none()) {
        return Err(Error::Arrow("a column of state takes more than 2 GiB; use its large type".into()));
    }
    let offsets = std::iter::once(0).chain(ends.iter().copied());
    Ok(OffsetBuffer::new(offsets.map(|end| O::from_usize(end).unwrap_or_default()).collect()))
}
