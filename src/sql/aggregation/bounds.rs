//! The lowest and the highest of floats, structs and lists, each by a total order.
//!
//! Of floats every NaN is one and above all numbers. DataFusion's accumulators for groups replace whatever does not compare, so
//! with a NaN their result depends on the order of the values; and they begin with the lowest or highest finite number, which an
//! infinity does not replace.
//!
//! Structs and lists go field by field and value by value, as Arrow's rows are compared, with NULL below everything. DataFusion
//! passes over a field that is NULL on one side, and compares no lists within structs, so that its result depends on the order of
//! the values, too.

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Accumulator, GroupsAccumulator};
use datafusion::physical_expr::GroupsAccumulatorAdapter;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use crate::sql::routing::canonical;

/// An accumulator without groups, if the function is one of the two over such values.
pub(super) fn accumulator(function: &AggregateFunctionExpr) -> Option<Box<dyn GroupsAccumulator>> {
    let highest = match function.fun().name() {
        "min" => false,
        "max" => true,
        _ => return None,
    };
    match function.field().data_type() {
        DataType::Float16 => {
            Some(of::<Float16Type>(&DataType::Float16, <<Float16Type as ArrowPrimitiveType>::Native>::NAN, highest))
        }
        DataType::Float32 => Some(of::<Float32Type>(&DataType::Float32, f32::NAN, highest)),
        DataType::Float64 => Some(of::<Float64Type>(&DataType::Float64, f64::NAN, highest)),
        nested if nested.is_nested() => {
            let data_type = nested.clone();
            let one = move || Ok(Box::new(Nested::new(data_type.clone(), highest)?) as Box<dyn Accumulator>);
            Some(Box::new(GroupsAccumulatorAdapter::new(one)))
        }
        _ => None,
    }
}

/// The lowest or the highest struct or list of one group.
#[derive(Debug)]
struct Nested {
    data_type: DataType,
    converter: RowConverter,
    highest: bool,
    bound: Option<OwnedRow>,
}

impl Nested {
    fn new(data_type: DataType, highest: bool) -> Result<Self, DataFusionError> {
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
        Ok(Self { data_type, converter, highest, bound: None })
    }
}

impl Accumulator for Nested {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<(), DataFusionError> {
        let [values] = values else { return Err(DataFusionError::Internal("a bound is of one column".into())) };
        let rows = self.converter.convert_columns(&[canonical(values)])?;
        let there = (0..values.len()).filter(|row| values.is_valid(*row)).map(|row| rows.row(row));
        let bound = if self.highest { there.max() } else { there.min() };
        if let Some(bound) = bound
            && self.bound.as_ref().is_none_or(|old| (bound > old.row()) == self.highest)
        {
            self.bound = Some(bound.owned());
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<(), DataFusionError> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>, DataFusionError> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue, DataFusionError> {
        match &self.bound {
            None => ScalarValue::try_new_null(&self.data_type),
            Some(bound) => {
                let columns = self.converter.convert_rows([bound.row()])?;
                ScalarValue::try_from_array(&columns[0], 0)
            }
        }
    }

    fn size(&self) -> usize {
        let bound = self.bound.as_ref().map_or(0, |bound| bound.as_ref().len());
        size_of::<Self>() + self.converter.size() + bound
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
