//! Arrays that others have made, as they should be.

use arrow_array::{Array, ArrayRef, make_array, new_empty_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};

/// Lists without a row get the one offset that they have. Java's Arrow wrote none before its version 18.3, as in Spark 4.1,
/// and then whatever lies in memory would be taken for it. What is no array for other reasons stays so.
#[must_use]
pub fn with_offsets(array: ArrayRef) -> ArrayRef {
    if !array.data_type().is_nested() {
        return array;
    }
    let data = array.to_data();
    if !lacks_offsets(&data) {
        return array;
    }
    mended(&data).map_or(array, make_array)
}

fn lacks_offsets(data: &ArrayData) -> bool {
    use DataType::{LargeList, List, Map};

    let is_list = matches!(data.data_type(), List(_) | LargeList(_) | Map(..));
    is_list && data.is_empty() || data.child_data().iter().any(lacks_offsets)
}

fn mended(data: &ArrayData) -> Result<ArrayData, ArrowError> {
    if data.is_empty() {
        return Ok(new_empty_array(data.data_type()).to_data());
    }
    let children = data.child_data().iter().map(mended).collect::<Result<_, _>>()?;
    data.clone().into_builder().child_data(children).build()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{Int32Array, ListArray, StructArray};
    use arrow_buffer::Buffer;
    use arrow_schema::Field;

    use super::*;

    /// Two lists without items, which are lists themselves.
    #[expect(unsafe_code, reason = "only so can there be an array that is none")]
    fn of_java(inner_offset: i32) -> ArrayRef {
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let inner = ArrayData::builder(DataType::List(item))
            .add_buffer(Buffer::from_vec(vec![inner_offset]))
            .add_child_data(Int32Array::from(Vec::<i32>::new()).to_data());
        // SAFETY: never read but by what mends it: that is what this tests.
        let inner = unsafe { inner.build_unchecked() };
        let items = Arc::new(Field::new_list_field(inner.data_type().clone(), true));
        let outer = ArrayData::builder(DataType::List(items))
            .len(2)
            .add_buffer(Buffer::from_vec(vec![0, 0, 0]))
            .add_child_data(inner);
        // SAFETY: as above.
        make_array(unsafe { outer.build_unchecked() })
    }

    #[test]
    fn lists_without_rows_have_an_offset() {
        let read = with_offsets(of_java(77));
        assert_eq!(&read, &with_offsets(of_java(0)));
        read.to_data().validate_full().unwrap();
        let field = Arc::new(Field::new("a", read.data_type().clone(), true));
        let in_struct: ArrayRef = Arc::new(StructArray::from(vec![(field, of_java(77))]));
        with_offsets(in_struct).to_data().validate_full().unwrap();
    }

    #[test]
    fn others_stay_as_they_are() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)]), None]);
        let lists: ArrayRef = Arc::new(lists);
        assert!(Arc::ptr_eq(&with_offsets(Arc::clone(&lists)), &lists));
    }
}
