//! The lowest and the highest of floats, structs and lists, each by a total order.
//!
//! Of floats every NaN is one and above all numbers. DataFusion's accumulators for groups replace whatever does not compare, so
//! with a NaN their result depends on the order of the values; and they begin with the lowest or highest finite number, which an
//! infinity does not replace.
//!
//! Structs and lists go field by field and value by value, as Arrow's rows are compared, with NULL below everything. DataFusion
//! passes over a field that is NULL on one side, and compares no lists within structs, so that its result depends on the order of
//! the values, too.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, BooleanArray, new_null_array};
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use arrow::row::{OwnedRow, Row, RowConverter, SortField};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use crate::sql::routing::canonical;

/// An accumulator without groups, if the function is one of the two over such values.
pub(super) fn accumulator(
    function: &AggregateFunctionExpr,
) -> Result<Option<Box<dyn GroupsAccumulator>>, DataFusionError> {
    let highest = match function.fun().name() {
        "min" => false,
        "max" => true,
        _ => return Ok(None),
    };
    Ok(Some(match function.field().data_type() {
        DataType::Float16 => {
            of::<Float16Type>(&DataType::Float16, <<Float16Type as ArrowPrimitiveType>::Native>::NAN, highest)
        }
        DataType::Float32 => of::<Float32Type>(&DataType::Float32, f32::NAN, highest),
        DataType::Float64 => of::<Float64Type>(&DataType::Float64, f64::NAN, highest),
        nested if nested.is_nested() => Box::new(Nested::new(nested, highest)?),
        _ => return Ok(None),
    }))
}

/// The lowest or the highest structs or lists of groups.
struct Nested {
    converter: RowConverter,
    /// What a group without a value has.
    none: OwnedRow,
    highest: bool,
    bounds: Vec<Option<OwnedRow>>,
    /// What the rows take.
    bytes: usize,
}

impl Nested {
    fn new(data_type: &DataType, highest: bool) -> Result<Self, DataFusionError> {
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
        let none = converter.convert_columns(&[new_null_array(data_type, 1)])?.row(0).owned();
        Ok(Self { converter, none, highest, bounds: Vec::new(), bytes: 0 })
    }
}

impl GroupsAccumulator for Nested {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.bounds.resize(total_num_groups.max(self.bounds.len()), None);
        for values in self.convert_to_state(values, filter)? {
            let rows = self.converter.convert_columns(&[Arc::clone(&values)])?;
            for (row, group) in group_indices.iter().enumerate().filter(|(row, _)| values.is_valid(*row)) {
                let (row, bound) = (rows.row(row), &mut self.bounds[*group]);
                let beyond = |old: Row<'_>| if self.highest { row > old } else { row < old };
                if bound.as_ref().is_none_or(|old| beyond(old.row())) {
                    let old = bound.replace(row.owned());
                    self.bytes = self.bytes + row.data().len() - old.map_or(0, |old| old.row().data().len());
                }
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef, DataFusionError> {
        let bounds = emit_to.take_needed(&mut self.bounds);
        self.bytes -= bounds.iter().flatten().map(|bound| bound.row().data().len()).sum::<usize>();
        let rows = bounds.iter().map(|bound| bound.as_ref().unwrap_or(&self.none).row());
        let columns = self.converter.convert_rows(rows)?;
        columns.into_iter().next().ok_or_else(|| DataFusionError::Internal("a bound is of one column".into()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>, DataFusionError> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.update_batch(values, group_indices, None, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        let left_out =
            |filter: &BooleanArray| filter.iter().map(|keep| Some(keep != Some(true))).collect::<BooleanArray>();
        let left_out = filter.map(left_out);
        let kept = |values: &ArrayRef| match &left_out {
            Some(left_out) => Ok(nullif(&canonical(values), left_out)?),
            None => Ok(canonical(values)),
        };
        values.iter().map(kept).collect()
    }

    fn size(&self) -> usize {
        self.bytes + self.bounds.capacity() * size_of::<Option<OwnedRow>>()
    }
}

fn of<T: ArrowPrimitiveType + Send>(data_type: &DataType, nan: T::Native, highest: bool) -> Box<dyn GroupsAccumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    let one_nan = move |value: T::Native| if value.partial_cmp(&value).is_none() { nan } else { value };
    if highest {
        let add = move |highest: &mut T::Native, value: T::Native| {
            let value = one_nan(value);
            if value.is_gt(*highest) {
                *highest = value;
            }
        };
        let none = T::Native::MIN_TOTAL_ORDER;
        return Box::new(PrimitiveGroupsAccumulator::<T, _>::new(data_type, add).with_starting_value(none));
    }
    let add = move |lowest: &mut T::Native, value: T::Native| {
        let value = one_nan(value);
        if value.is_lt(*lowest) {
            *lowest = value;
        }
    };
    let none = T::Native::MAX_TOTAL_ORDER;
    Box::new(PrimitiveGroupsAccumulator::<T, _>::new(data_type, add).with_starting_value(none))
}
