//! Writes what fuzzing begins with to `corpus/<target>`: what the golden files hold, and results of all shapes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, MapBuilder, StringBuilder};
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float64Array, Int64Array, LargeListArray,
    NullArray, StringArray, StringViewArray, StructArray,
};
use clonos::determinant::encode_results;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = here.join("../tests/golden");
    let seeds = [
        ("block", files(&golden.join("blocks/v1"))?),
        ("block_body", files(&golden.join("blocks/v1"))?),
        ("segment", files(&golden.join("segments/v1"))?),
        ("segment_records", files(&golden.join("segments/v1"))?),
        ("results", results()?),
        ("frame", files(&golden.join("frames/v1"))?),
        ("frame_body", files(&golden.join("frames/v1"))?),
    ];
    for (target, seeds) in seeds {
        let folder = here.join("corpus").join(target);
        fs::create_dir_all(&folder)?;
        println!("{}: {} seeds", folder.display(), seeds.len());
        for (number, seed) in seeds.into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        }
    }
    Ok(())
}

fn files(folder: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<PathBuf>, _>>()?;
    paths.sort();
    paths.into_iter().map(fs::read).collect()
}

fn results() -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let dictionary: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let lists = || [Some(vec![Some(1), None]), None, Some(vec![])];
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    map.keys().append_value("key");
    map.values().append_value(5);
    map.append(true)?;
    let arrays: Vec<ArrayRef> = vec![
        Arc::clone(&numbers),
        Arc::new(Int64Array::from(vec![7; 2_000])),
        Arc::new((0..40_000).map(|n| Some(n % 3 == 0)).collect::<BooleanArray>()),
        Arc::new(Float64Array::from(vec![f64::NAN, -0.0])),
        Arc::new(StringArray::from(vec![Some("word"), None, Some("")])),
        Arc::new(StringViewArray::from(vec!["short", "too long to be kept inline"])),
        Arc::new(NullArray::new(5)),
        Arc::new(StructArray::try_from(vec![("number", numbers), ("word", Arc::new(dictionary.clone()))])?),
        Arc::new(dictionary),
        Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(lists())),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![None, Some(2)])], 2)),
        Arc::new(map.finish()),
    ];
    Ok(arrays.iter().map(encode_results).collect::<Result<_, _>>()?)
}
