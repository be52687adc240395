//! How large rows are, whatever array they are a part of and whatever lies below its nulls: where a round ends
//! depends on it, and a replay must end it at the same row.

use std::ops::Range;

use arrow_array::{Array, OffsetSizeTrait, RecordBatch};
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// Bytes of a batch's rows. Text and items of lists below nulls do not count, except inside of structs.
pub(super) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| array_bytes(&column.to_data())).sum()
}

fn array_bytes(data: &ArrayData) -> usize {
    match data.data_type() {
        DataType::Utf8 | DataType::Binary => {
            4 * data.len() + spans::<i32>(data).iter().map(Range::len).sum::<usize>()
        }
        DataType::LargeUtf8 | DataType::LargeBinary => {
            8 * data.len() + spans::<i64>(data).iter().map(Range::len).sum::<usize>()
        }
        DataType::List(_) | DataType::Map(..) => 4 * data.len() + items_bytes::<i32>(data),
        DataType::LargeList(_) => 8 * data.len() + items_bytes::<i64>(data),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let first = data.offset() * size;
            item_bytes(data, first..first + data.len() * size)
        }
        // A struct's columns are sliced with it.
        DataType::Struct(_) => data.child_data().iter().map(array_bytes).sum(),
        DataType::Dictionary(keys, _) => data.len() * keys.primitive_width().unwrap_or(4),
        DataType::Boolean => data.len().div_ceil(8),
        DataType::FixedSizeBinary(size) => data.len() * usize::try_from(*size).unwrap_or(0),
        kind => kind
            .primitive_width()
            .map_or_else(|| data.get_slice_memory_size().unwrap_or_default(), |width| data.len() * width),
    }
}

fn items_bytes<O: OffsetSizeTrait>(data: &ArrayData) -> usize {
    spans::<O>(data).into_iter().map(|span| item_bytes(data, span)).sum()
}

fn item_bytes(data: &ArrayData, span: Range<usize>) -> usize {
    data.child_data().first().map_or(0, |items| array_bytes(&items.slice(span.start, span.len())))
}

/// Where the bytes or items of an array's rows are: one span, if there are none below nulls.
fn spans<O: OffsetSizeTrait>(data: &ArrayData) -> Vec<Range<usize>> {
    let offsets = data.buffers().first().map_or(&[][..], |buffer| buffer.typed_data::<O>());
    let Some(offsets) = offsets.get(data.offset()..=data.offset() + data.len()) else { return Vec::new() };
    let Some(nulls) = data.nulls().filter(|nulls| nulls.null_count() > 0) else {
        let ends = offsets.first().zip(offsets.last());
        return ends.map(|(first, last)| first.as_usize()..last.as_usize()).into_iter().collect();
    };
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (ends, valid) in offsets.windows(2).zip(nulls) {
        let [start, end] = ends else { continue };
        let (start, end) = (start.as_usize(), end.as_usize());
        match spans.last_mut() {
            _ if !valid => {}
            Some(span) if span.end == start => span.end = end,
            _ => spans.push(start..end),
        }
    }
    spans
}
