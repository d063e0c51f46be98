//! The lowest and the highest of floats, by their total order, in which every NaN is one and above all numbers.
//!
//! DataFusion's accumulators for groups replace whatever does not compare, so with a NaN their result depends on the order of
//! the values; and they begin with the lowest or highest finite number, which an infinity does not replace.

use arrow::array::{ArrowNativeTypeOp, ArrowPrimitiveType};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::logical_expr::GroupsAccumulator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// An accumulator without groups, if the function is one of the two over floats.
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
        _ => None,
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
