//! The aggregate that keeps the first rows of a group.
//!
//! Rows are ordered by ORDER BY, and where that leaves them at one place, by their columns from left to right. So the
//! first rows are the same in whatever order they came; which of two equal rows is kept makes no difference.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, StructArray, UInt32Array, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::Numbering;
use crate::sql::aggregation::unnested;
use crate::sql::pipeline::{batch_of, conform};

/// What is kept of each group.
#[derive(Clone, Debug)]
pub(in crate::sql) struct Top {
    pub(in crate::sql) numbering: Numbering,
    pub(in crate::sql) limit: usize,
    /// The direction of each ORDER BY expression.
    pub(in crate::sql) options: Vec<SortOptions>,
    /// The ORDER BY expressions, then the columns of a row.
    pub(in crate::sql) fields: Fields,
    /// The key column that is answered behind the number of a row, if one is: the window of its group.
    pub(in crate::sql) window: Option<usize>,
    /// The columns of a row, then its number, then the window.
    pub(in crate::sql) output: SchemaRef,
}

impl Top {
    /// The type of a group's state and result.
    pub(in crate::sql) fn state_type(&self) -> DataType {
        DataType::List(self.item())
    }

    fn item(&self) -> FieldRef {
        Arc::new(Field::new_list_field(DataType::Struct(self.fields.clone()), true))
    }

    /// An accumulator without groups.
    pub(in crate::sql) fn accumulator(self: &Arc<Self>) -> Result<Box<dyn GroupsAccumulator>, DataFusionError> {
        let (order, _) = self.fields.split_at(self.options.len());
        let order = order.iter().zip(&self.options);
        let order = order.map(|(field, options)| SortField::new_with_options(field.data_type().clone(), *options));
        let rows = self.fields.iter().map(|field| SortField::new(field.data_type().clone()));
        Ok(Box::new(TopRows {
            order: RowConverter::new(order.collect())?,
            rows: RowConverter::new(rows.collect())?,
            top: Arc::clone(self),
            groups: Vec::new(),
            bytes: 0,
        }))
    }

    /// The rows of groups with their numbers, and the group of each. `keys` are those of the groups.
    pub(in crate::sql) fn expand(
        &self,
        groups: &ArrayRef,
        keys: &[ArrayRef],
    ) -> Result<(arrow::array::RecordBatch, UInt32Array), DataFusionError> {
        let groups = conform(Arc::clone(groups), &self.state_type())?;
        let groups = groups.as_list::<i32>();
        let rows = groups.values().as_struct();
        let order: Vec<_> = rows.columns()[..self.options.len()].to_vec();
        let encoded = RowConverter::new(order.iter().map(|key| SortField::new(key.data_type().clone())).collect())?
            .convert_columns(&order)?;
        let mut picked = Vec::new();
        let mut numbers = Vec::new();
        let mut origins = Vec::new();
        for (group, range) in groups.offsets().windows(2).enumerate() {
            let (mut rank, mut dense) = (0, 0);
            for (place, row) in (range[0] as usize..range[1] as usize).enumerate() {
                if place == 0 || encoded.row(row) != encoded.row(row - 1) {
                    (rank, dense) = (place as u64 + 1, dense + 1);
                }
                picked.push(row as u32);
                origins.push(group as u32);
                numbers.push(match self.numbering {
                    Numbering::RowNumber => place as u64 + 1,
                    Numbering::Rank => rank,
                    Numbering::DenseRank => dense,
                });
            }
        }
        let picked = UInt32Array::from(picked);
        let mut columns = arrow::compute::take_arrays(&rows.columns()[self.options.len()..], &picked, None)?;
        columns.push(Arc::new(UInt64Array::from(numbers)));
        let origins = UInt32Array::from(origins);
        if let Some(window) = self.window {
            columns.push(arrow::compute::take(&keys[window], &origins, None)?);
        }
        let columns = columns.into_iter().zip(self.output.fields());
        let columns = columns.map(|(column, field)| conform(column, field.data_type())).collect::<Result<_, _>>()?;
        Ok((batch_of(&self.output, columns, origins.len())?, origins))
    }
}

/// A row as bytes, by which rows are compared.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    order: Box<[u8]>,
    row: Box<[u8]>,
}

impl Kept {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.order.len() + self.row.len()
    }
}

/// The first rows of groups.
struct TopRows {
    top: Arc<Top>,
    order: RowConverter,
    rows: RowConverter,
    groups: Vec<Vec<Kept>>,
    bytes: usize,
}

impl TopRows {
    fn add(&mut self, columns: &[ArrayRef], groups: impl Iterator<Item = usize>) -> Result<(), DataFusionError> {
        let order = self.order.convert_columns(&columns[..self.top.options.len()])?;
        let rows = self.rows.convert_columns(columns)?;
        for (row, group) in groups.enumerate() {
            let kept = &mut self.groups[group];
            let new = (order.row(row), rows.row(row));
            let place =
                kept.partition_point(|old| (old.order.as_ref(), old.row.as_ref()) < (new.0.data(), new.1.data()));
            if place == kept.len() && surplus(&self.top, kept, new.0.data()) {
                continue;
            }
            let new = Kept { order: new.0.data().into(), row: new.1.data().into() };
            self.bytes += new.bytes();
            kept.insert(place, new);
            while let Some(last) = kept.last()
                && surplus(&self.top, &kept[..kept.len() - 1], &last.order)
            {
                self.bytes -= kept.pop().map_or(0, |last| last.bytes());
            }
        }
        Ok(())
    }

    fn take(&mut self, emit: EmitTo) -> Result<ArrayRef, DataFusionError> {
        let groups = emit.take_needed(&mut self.groups);
        let lengths: Vec<_> = groups.iter().map(Vec::len).collect();
        self.bytes -= groups.iter().flatten().map(Kept::bytes).sum::<usize>();
        let parser = self.rows.parser();
        let columns = self.rows.convert_rows(groups.iter().flatten().map(|kept| parser.parse(&kept.row)))?;
        let columns = columns.into_iter().zip(&self.top.fields);
        let columns = columns.map(|(column, field)| conform(column, field.data_type())).collect::<Result<_, _>>()?;
        let rows = StructArray::try_new(self.top.fields.clone(), columns, None)?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::try_new(self.top.item(), offsets, Arc::new(rows), None)?))
    }
}

/// Whether a row at this place in the order is none of the first, given those before it.
fn surplus(top: &Top, before: &[Kept], order: &[u8]) -> bool {
    let earlier = || before.iter().take_while(|kept| kept.order.as_ref() < order);
    match top.numbering {
        Numbering::RowNumber => before.len() >= top.limit,
        Numbering::Rank => earlier().count() >= top.limit,
        Numbering::DenseRank => {
            let mut distinct = 0;
            let mut last: Option<&Kept> = None;
            for kept in earlier() {
                distinct += usize::from(last.is_none_or(|last| last.order != kept.order));
                last = Some(kept);
            }
            distinct >= top.limit
        }
    }
}

impl GroupsAccumulator for TopRows {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        _filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.groups.resize_with(total_num_groups.max(self.groups.len()), Vec::new);
        self.add(values, group_indices.iter().copied())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef, DataFusionError> {
        self.take(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>, DataFusionError> {
        Ok(vec![self.take(emit_to)?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.groups.resize_with(total_num_groups.max(self.groups.len()), Vec::new);
        let Some(lists) = values.first().and_then(|lists| lists.as_list_opt::<i32>()) else {
            return Err(DataFusionError::Internal("the state of a ranking is a list of rows".into()));
        };
        let (rows, groups) = unnested(lists, group_indices.iter().copied());
        self.add(rows.as_struct().columns(), groups.into_iter())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        _filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        let rows = StructArray::try_new(self.top.fields.clone(), values.to_vec(), None)?;
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, rows.len()));
        Ok(vec![Arc::new(ListArray::try_new(self.top.item(), offsets, Arc::new(rows), None)?)])
    }

    fn size(&self) -> usize {
        self.bytes + self.groups.capacity() * size_of::<Vec<Kept>>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{Int64Type, Schema, UInt64Type};

    use super::*;

    fn top(numbering: Numbering, limit: usize, descending: bool) -> Arc<Top> {
        let number = |name: &str| Field::new(name, DataType::Int64, true);
        Arc::new(Top {
            numbering,
            limit,
            options: vec![SortOptions { descending, nulls_first: false }],
            fields: Fields::from(vec![number("o"), number("v")]),
            window: None,
            output: Arc::new(Schema::new(vec![number("v"), Field::new("n", DataType::UInt64, true)])),
        })
    }

    fn rows(batch: &RecordBatch) -> Vec<(i64, u64)> {
        let values = batch.column(0).as_primitive::<Int64Type>().values().iter().copied();
        values.zip(batch.column(1).as_primitive::<UInt64Type>().values().iter().copied()).collect()
    }

    /// All rows in one go, and each alone and merged.
    fn first(top: &Arc<Top>, order: &[Option<i64>]) -> Vec<(i64, u64)> {
        let columns = |from: usize, until: usize| -> Vec<ArrayRef> {
            let values = (from as i64..until as i64).collect::<Vec<_>>();
            vec![Arc::new(Int64Array::from(order[from..until].to_vec())), Arc::new(Int64Array::from(values))]
        };
        let mut whole = top.accumulator().unwrap();
        whole.update_batch(&columns(0, order.len()), &vec![0; order.len()], None, 1).unwrap();
        let (whole, origins) = top.expand(&whole.evaluate(EmitTo::All).unwrap(), &[]).unwrap();
        assert!(origins.values().iter().all(|origin| *origin == 0));
        let mut merged = top.accumulator().unwrap();
        for row in (0..order.len()).rev() {
            let mut part = top.accumulator().unwrap();
            part.update_batch(&columns(row, row + 1), &[0], None, 1).unwrap();
            merged.merge_batch(&part.state(EmitTo::All).unwrap(), &[0], 1).unwrap();
        }
        assert!(merged.size() > 0);
        let (merged, _) = top.expand(&merged.evaluate(EmitTo::All).unwrap(), &[]).unwrap();
        assert_eq!(rows(&whole), rows(&merged));
        rows(&whole)
    }

    #[test]
    fn ties_count_as_the_function_says() {
        let order = [Some(3), Some(1), Some(1), Some(2), None, Some(2), Some(1)];
        assert_eq!(first(&top(Numbering::RowNumber, 4, false), &order), [(1, 1), (2, 2), (6, 3), (3, 4)]);
        assert_eq!(first(&top(Numbering::Rank, 3, false), &order), [(1, 1), (2, 1), (6, 1)]);
        assert_eq!(first(&top(Numbering::Rank, 4, false), &order), [(1, 1), (2, 1), (6, 1), (3, 4), (5, 4)]);
        assert_eq!(first(&top(Numbering::DenseRank, 2, false), &order), [(1, 1), (2, 1), (6, 1), (3, 2), (5, 2)]);
        assert_eq!(first(&top(Numbering::RowNumber, 2, true), &order), [(0, 1), (3, 2)]);
        assert_eq!(first(&top(Numbering::RowNumber, 9, true), &order).last(), Some(&(4, 7)));
        assert_eq!(first(&top(Numbering::RowNumber, 0, true), &order), []);
    }
}
