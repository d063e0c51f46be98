//! DataFusion's batch engine over the same rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use datafusion::execution::context::SessionContext;
use datafusion::prelude::SessionConfig;

use super::records::Record;

/// The rows of a table, decoded by Arrow's own JSON reader.
pub(crate) fn decoded(schema: &SchemaRef, logs: &[Vec<Record>]) -> RecordBatch {
    let mut decoder =
        arrow_json::ReaderBuilder::new(Arc::clone(schema)).with_batch_size(1 << 20).build_decoder().unwrap();
    for record in logs.iter().flatten() {
        decoder.decode(record.value.as_ref().unwrap()).unwrap();
    }
    decoder.flush().unwrap().unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(schema)))
}

/// What DataFusion's batch engine makes of the rows, cast to the columns of a sink.
pub(crate) fn batch_engine(select: &str, rows: RecordBatch, sink: &Schema) -> Vec<Vec<ScalarValue>> {
    let mut config = SessionConfig::new().with_target_partitions(1);
    let parser = &mut config.options_mut().sql_parser;
    parser.map_string_types_to_utf8view = false;
    parser.default_null_ordering = "nulls_min".to_owned();
    let context = SessionContext::new_with_config(config);
    context.register_table("orders", Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let batches = runtime.block_on(async { context.sql(select).await.unwrap().collect().await.unwrap() });
    batches
        .iter()
        .flat_map(|batch| {
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .zip(sink.fields())
                .map(|(column, field)| arrow::compute::cast(column, field.data_type()).unwrap())
                .collect();
            (0..batch.num_rows()).map(move |row| {
                columns.iter().map(|column| ScalarValue::try_from_array(column, row).unwrap()).collect::<Vec<_>>()
            })
        })
        .collect()
}
