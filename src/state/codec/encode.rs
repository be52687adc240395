//! Columns to rows: one pass for sizes, one for bytes, both column by column.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryViewArray, GenericBinaryArray, OffsetSizeTrait, StructArray};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use bytes::Bytes;

use super::bitmap_bytes;
use super::names::Named;
use crate::error::{Error, Result};

/// Rows as bytes, back to back.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    bytes: Bytes,
    /// Where each row starts, and the last one ends.
    offsets: Vec<usize>,
}

impl Rows {
    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them; empty beyond the last.
    #[must_use]
    pub fn get(&self, row: usize) -> &[u8] {
        self.span(row).and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// One of them, which shares their memory.
    #[must_use]
    pub fn bytes(&self, row: usize) -> Bytes {
        self.span(row).map(|(start, end)| self.bytes.slice(start..end)).unwrap_or_default()
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.len()).map(|row| self.get(row))
    }

    fn span(&self, row: usize) -> Option<(usize, usize)> {
        Some((*self.offsets.get(row)?, *self.offsets.get(row + 1)?))
    }
}

/// Rows of `columns`, each behind the bytes of `head`.
///
/// # Errors
/// [`Error::UnsupportedType`] names a type that is not kept; [`Error::Misuse`] for columns of other lengths.
pub fn encode(columns: &[ArrayRef], rows: usize, head: &[u8]) -> Result<Rows> {
    if columns.iter().any(|column| column.len() != rows) {
        return Err(Error::Misuse { what: "columns of one batch differ in length".into() });
    }
    let columns = columns.iter().map(|column| Column::new(column, None)).collect::<Result<Vec<_>>>()?;
    let bitmap = bitmap_bytes(columns.len());
    let mut next = vec![head.len() + bitmap; rows];
    columns.iter().for_each(|column| column.add_sizes(&mut next));
    let total = into_starts(&mut next);
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.extend_from_slice(&next);
    offsets.push(total);
    let mut out = vec![0; total];
    for at in &mut next {
        put(&mut out, *at, head);
        *at += head.len();
    }
    write_fields(&columns, &mut out, &mut next, None);
    Ok(Rows { bytes: out.into(), offsets })
}

/// Turns sizes into starts; the sum of all sizes.
fn into_starts(sizes: &mut [usize]) -> usize {
    let mut sum = 0;
    for size in sizes {
        sum += std::mem::replace(size, sum);
    }
    sum
}

/// A column that is ready to be written: with nulls wherever something above it has one.
struct Column {
    nulls: Option<NullBuffer>,
    values: Values,
}

enum Values {
    /// Nothing but nulls.
    None,
    Booleans(BooleanBuffer),
    Fixed {
        bytes: Buffer,
        width: usize,
    },
    Small(GenericBinaryArray<i32>),
    Large(GenericBinaryArray<i64>),
    View(BinaryViewArray),
    Struct(Vec<Column>),
    List(Box<Items>),
}

/// Items of lists, or entries of maps.
struct Items {
    /// Which of them are of which row: starts, and the end.
    rows: Vec<usize>,
    items: Column,
    /// Where each starts if all are back to back, and their end.
    starts: Vec<usize>,
    /// Whether there is a bitmap before them: entries of maps are not null.
    bitmap: bool,
}

impl Column {
    /// `hidden` are the nulls above it.
    fn new(array: &ArrayRef, hidden: Option<&NullBuffer>) -> Result<Self> {
        let nulls = NullBuffer::union(array.nulls(), hidden).filter(|nulls| nulls.null_count() > 0);
        let values = match array.data_type() {
            DataType::Null => Values::None,
            DataType::Boolean => Values::Booleans(array.as_boolean().values().clone()),
            DataType::Utf8 => Values::Small(array.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Values::Large(array.as_string::<i64>().clone().into()),
            DataType::Utf8View => Values::View(array.as_string_view().clone().to_binary_view()),
            DataType::Binary => Values::Small(array.as_binary::<i32>().clone()),
            DataType::LargeBinary => Values::Large(array.as_binary::<i64>().clone()),
            DataType::BinaryView => Values::View(array.as_binary_view().clone()),
            DataType::Struct(_) => Values::Struct(children(array.as_struct(), nulls.as_ref())?),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                items(list.offsets(), list.values(), nulls.as_ref(), true)?
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                items(list.offsets(), list.values(), nulls.as_ref(), true)?
            }
            DataType::Map(..) => {
                let map = array.as_map();
                let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
                items(map.offsets(), &entries, nulls.as_ref(), false)?
            }
            kind => {
                let unsupported = || Error::UnsupportedType { data_type: Named(kind).to_string() };
                let width = fixed_width(kind).ok_or_else(unsupported)?;
                let data = array.to_data();
                let all = data.buffers().first().ok_or_else(unsupported)?;
                let bytes = all.slice_with_length(data.offset() * width, data.len() * width);
                Values::Fixed { bytes, width }
            }
        };
        Ok(Self { nulls, values })
    }

    /// Bytes of each value, added to those of its row.
    fn add_sizes(&self, sizes: &mut [usize]) {
        let nulls = self.nulls.as_ref();
        match &self.values {
            Values::None => {}
            Values::Booleans(_) => each(nulls, sizes.iter_mut(), |size| *size += 1),
            Values::Fixed { width, .. } => each(nulls, sizes.iter_mut(), |size| *size += width),
            Values::Small(array) => add_lengths(array, nulls, sizes),
            Values::Large(array) => add_lengths(array, nulls, sizes),
            Values::View(array) => {
                let lengths = array.lengths().map(|len| len as usize);
                each(nulls, sizes.iter_mut().zip(lengths), |(size, len)| *size += varint_len(len) + len);
            }
            Values::Struct(columns) => {
                let bitmap = bitmap_bytes(columns.len());
                each(nulls, sizes.iter_mut(), |size| *size += bitmap);
                columns.iter().for_each(|column| column.add_sizes(sizes));
            }
            Values::List(items) => each(nulls, sizes.iter_mut().zip(items.spans()), |(size, span)| {
                *size += items.head_len(span) + items.bytes_of(span);
            }),
        }
    }

    /// Writes each value that is not null where its row goes on.
    fn write(&self, out: &mut [u8], next: &mut [usize]) {
        let nulls = self.nulls.as_ref();
        match &self.values {
            Values::None => {}
            Values::Booleans(values) => each(nulls, next.iter_mut().zip(values.iter()), |(at, value)| {
                *at += put(out, *at, &[u8::from(value)]);
            }),
            Values::Fixed { bytes, width } => match width {
                1 => write_fixed::<1>(bytes, nulls, out, next),
                2 => write_fixed::<2>(bytes, nulls, out, next),
                4 => write_fixed::<4>(bytes, nulls, out, next),
                8 => write_fixed::<8>(bytes, nulls, out, next),
                16 => write_fixed::<16>(bytes, nulls, out, next),
                // Nothing at all is the same everywhere.
                0 => {}
                width => each(nulls, next.iter_mut().zip(bytes.chunks_exact(*width)), |(at, value)| {
                    *at += put(out, *at, value);
                }),
            },
            Values::Small(array) => write_bytes(array, nulls, out, next),
            Values::Large(array) => write_bytes(array, nulls, out, next),
            Values::View(array) => each(nulls, next.iter_mut().zip(0..array.len()), |(at, row)| {
                *at += put_sized(out, *at, array.value(row));
            }),
            Values::Struct(columns) => write_fields(columns, out, next, nulls),
            Values::List(items) => items.write(nulls, out, next),
        }
    }

    /// Sets a field's bit in the bitmaps that start at `bitmaps`, where it is not null.
    fn mark(&self, field: usize, out: &mut [u8], bitmaps: &[usize]) {
        if matches!(self.values, Values::None) {
            return;
        }
        each(self.nulls.as_ref(), bitmaps.iter(), |at| {
            if let Some(byte) = out.get_mut(at + field / 8) {
                *byte |= 1 << (field % 8);
            }
        });
    }
}

/// Rows of fields, one for each of `nulls` that is none: bitmap, then field by field.
fn write_fields(columns: &[Column], out: &mut [u8], next: &mut [usize], nulls: Option<&NullBuffer>) {
    let bitmaps = next.to_vec();
    let len = bitmap_bytes(columns.len());
    each(nulls, next.iter_mut(), |at| *at += len);
    for (field, column) in columns.iter().enumerate() {
        // What is null above is null in each column, so no bit of another row is touched.
        column.mark(field, out, &bitmaps);
        column.write(out, next);
    }
}

fn children(array: &StructArray, nulls: Option<&NullBuffer>) -> Result<Vec<Column>> {
    array.columns().iter().map(|column| Column::new(column, nulls)).collect()
}

fn items<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    values: &ArrayRef,
    nulls: Option<&NullBuffer>,
    bitmap: bool,
) -> Result<Values> {
    let first = offsets.first().map_or(0, |offset| offset.as_usize());
    let rows: Vec<usize> = offsets.iter().map(|offset| offset.as_usize() - first).collect();
    let len = rows.last().copied().unwrap_or(0);
    let items = Column::new(&values.slice(first, len), hidden_items(&rows, nulls).as_ref())?;
    let mut starts = vec![0; len];
    items.add_sizes(&mut starts);
    let end = into_starts(&mut starts);
    starts.push(end);
    Ok(Values::List(Box::new(Items { rows, items, starts, bitmap })))
}

/// Nulls for items of lists that are null.
fn hidden_items(rows: &[usize], nulls: Option<&NullBuffer>) -> Option<NullBuffer> {
    let nulls = nulls?;
    let mut valid = BooleanBufferBuilder::new(rows.last().copied().unwrap_or(0));
    for (span, is_valid) in rows.windows(2).zip(nulls) {
        let [start, end] = span else { continue };
        valid.append_n(end - start, is_valid);
    }
    Some(NullBuffer::new(valid.finish()))
}

impl Items {
    fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.rows.iter().copied().zip(self.rows.iter().copied().skip(1))
    }

    fn start(&self, item: usize) -> usize {
        self.starts.get(item).copied().unwrap_or(0)
    }

    fn bytes_of(&self, (start, end): (usize, usize)) -> usize {
        self.start(end) - self.start(start)
    }

    /// Bytes before the items of a row.
    fn head_len(&self, (start, end): (usize, usize)) -> usize {
        varint_len(end - start) + if self.bitmap { bitmap_bytes(end - start) } else { 0 }
    }

    fn write(&self, nulls: Option<&NullBuffer>, out: &mut [u8], next: &mut [usize]) {
        let mut places = vec![0; self.starts.len() - 1];
        each(nulls, next.iter_mut().zip(self.spans()), |(at, (start, end))| {
            *at += put_varint(out, *at, end - start);
            if self.bitmap {
                for item in start..end {
                    let place = item - start;
                    if self.is_valid(item)
                        && let Some(byte) = out.get_mut(*at + place / 8)
                    {
                        *byte |= 1 << (place % 8);
                    }
                }
                *at += bitmap_bytes(end - start);
            }
            let (first, base) = (self.start(start), *at);
            let starts = self.starts.get(start..end).unwrap_or_default();
            for (place, start) in places.iter_mut().skip(start).zip(starts) {
                *place = base + start - first;
            }
            *at += self.bytes_of((start, end));
        });
        self.items.write(out, &mut places);
    }

    fn is_valid(&self, item: usize) -> bool {
        !matches!(self.items.values, Values::None)
            && self.items.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(item))
    }
}

/// Bytes of each value of a type, if all have the same.
pub(super) fn fixed_width(kind: &DataType) -> Option<usize> {
    match kind {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        kind => kind.primitive_width(),
    }
}

/// Runs `work` for what stands where there is no null.
#[inline]
fn each<T>(nulls: Option<&NullBuffer>, items: impl Iterator<Item = T>, mut work: impl FnMut(T)) {
    match nulls {
        None => items.for_each(work),
        Some(nulls) => {
            for (item, valid) in items.zip(nulls) {
                if valid {
                    work(item);
                }
            }
        }
    }
}

fn lengths<O: OffsetSizeTrait>(array: &GenericBinaryArray<O>) -> impl Iterator<Item = usize> + '_ {
    let offsets = array.value_offsets();
    offsets.iter().zip(offsets.iter().skip(1)).map(|(start, end)| end.as_usize() - start.as_usize())
}

fn add_lengths<O: OffsetSizeTrait>(
    array: &GenericBinaryArray<O>,
    nulls: Option<&NullBuffer>,
    sizes: &mut [usize],
) {
    each(nulls, sizes.iter_mut().zip(lengths(array)), |(size, len)| *size += varint_len(len) + len);
}

fn write_bytes<O: OffsetSizeTrait>(
    array: &GenericBinaryArray<O>,
    nulls: Option<&NullBuffer>,
    out: &mut [u8],
    next: &mut [usize],
) {
    let (offsets, bytes) = (array.value_offsets(), array.value_data());
    let spans = offsets.iter().zip(offsets.iter().skip(1));
    each(nulls, next.iter_mut().zip(spans), |(at, (start, end))| {
        *at += put_sized(out, *at, bytes.get(start.as_usize()..end.as_usize()).unwrap_or_default());
    });
}

/// With the width known to the compiler, a value is one load and one store.
fn write_fixed<const WIDTH: usize>(
    bytes: &Buffer,
    nulls: Option<&NullBuffer>,
    out: &mut [u8],
    next: &mut [usize],
) {
    let (values, _) = bytes.as_slice().as_chunks::<WIDTH>();
    each(nulls, next.iter_mut().zip(values), |(at, value)| {
        *at += put(out, *at, value);
    });
}

/// Writes bytes at a place; how many.
#[inline]
fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
    bytes.len()
}

#[inline]
fn put_sized(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let head = put_varint(out, at, bytes.len());
    head + put(out, at + head, bytes)
}

#[inline]
fn put_varint(out: &mut [u8], at: usize, mut value: usize) -> usize {
    let mut len = 0;
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        put(out, at + len, &[if value == 0 { byte } else { byte | 0x80 }]);
        len += 1;
        if value == 0 {
            return len;
        }
    }
}

/// Bytes of a number as a varint.
#[inline]
const fn varint_len(value: usize) -> usize {
    let bits = (usize::BITS - (value | 1).leading_zeros()) as usize;
    bits.div_ceil(7)
}
