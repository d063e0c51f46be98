//! Sums of whole and decimal numbers, and averages of lengths of time, in a type that is wide enough.
//!
//! DataFusion's sums wrap around without a word. Here they are kept in a wider type, in which they are exact whatever order the
//! values come in, and only a result that its own type does not hold is an error. What a sum passes through does not matter.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, PrimitiveArray, UInt64Array};
use arrow::compute::{CastOptions, cast, cast_with_options, nullif};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Decimal128Type, Decimal256Type, Int64Type,
    UInt64Type, i256,
};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// The types in which a function keeps its state, if it is one of those here.
pub(super) fn state_types(function: &AggregateFunctionExpr) -> Result<Option<Vec<DataType>>, DataFusionError> {
    if averages_time(function) {
        return Ok(Some(vec![DataType::UInt64, DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0)]));
    }
    let sum = state_type(function)?;
    Ok(sum.filter(|_| !function.is_distinct()).map(|sum| vec![sum]))
}

fn averages_time(function: &AggregateFunctionExpr) -> bool {
    let of_time = matches!(function.field().data_type(), DataType::Duration(_));
    function.fun().name() == "avg" && of_time && !function.is_distinct()
}

/// An accumulator without groups, if the function is the average of lengths of time. DataFusion's sum of them is in their own
/// type: in nanoseconds it lasts for 292 years, which is a year of 292 rows.
pub(super) fn average(function: &AggregateFunctionExpr) -> Option<Box<dyn GroupsAccumulator>> {
    if !averages_time(function) {
        return None;
    }
    let counts = PrimitiveGroupsAccumulator::<UInt64Type, _>::new(&DataType::UInt64, |count: &mut u64, more: u64| {
        *count += more;
    });
    let wide = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);
    Some(Box::new(Average { counts: Box::new(counts), sum: sum(function, wide) }))
}

/// The type in which a function keeps its sums, if it is a sum of whole or decimal numbers. Refuses what no type is wide
/// enough for.
pub(super) fn state_type(function: &AggregateFunctionExpr) -> Result<Option<DataType>, DataFusionError> {
    if function.fun().name() != "sum" {
        return Ok(None);
    }
    let result = function.field();
    Ok(Some(match result.data_type() {
        DataType::Int64 | DataType::UInt64 | DataType::Duration(_) => DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) => {
            DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)
        }
        // The result has ten digits more than the values, unless there are no more.
        DataType::Decimal128(precision, scale) if *precision < DECIMAL128_MAX_PRECISION => {
            DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)
        }
        DataType::Decimal128(_, scale) => DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale),
        DataType::Decimal256(precision, scale) if *precision < DECIMAL256_MAX_PRECISION => {
            DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale)
        }
        DataType::Decimal256(..) => {
            return Err(DataFusionError::Plan(format!(
                "{} is not supported: of numbers of more than 65 digits a sum could overflow without a word; cast them to a \
                 DECIMAL of fewer",
                function.name()
            )));
        }
        _ => return Ok(None),
    }))
}

/// An accumulator without groups, if the function is such a sum. `values` is DataFusion's for it, which gathers the different
/// values where only those are added.
pub(super) fn accumulator(
    function: &AggregateFunctionExpr,
    values: impl FnOnce() -> Result<Box<dyn GroupsAccumulator>, DataFusionError>,
) -> Result<Option<Box<dyn GroupsAccumulator>>, DataFusionError> {
    let Some(wide) = state_type(function)? else { return Ok(None) };
    let sum = sum(function, wide);
    Ok(Some(match function.is_distinct() {
        true => Box::new(DistinctSum { values: values()?, sum }),
        false => Box::new(sum),
    }))
}

/// The sums of a function in a wider type.
fn sum(function: &AggregateFunctionExpr, wide: DataType) -> Sum {
    let sums: Box<dyn GroupsAccumulator> = match &wide {
        DataType::Decimal128(..) => {
            Box::new(PrimitiveGroupsAccumulator::<Decimal128Type, _>::new(&wide, |sum: &mut i128, value: i128| {
                *sum = sum.wrapping_add(value)
            }))
        }
        _ => Box::new(PrimitiveGroupsAccumulator::<Decimal256Type, _>::new(&wide, |sum: &mut i256, value: i256| {
            *sum = sum.wrapping_add(value);
        })),
    };
    Sum { name: function.name().to_owned(), result: function.field().data_type().clone(), wide, sums }
}

/// The sums of groups.
struct Sum {
    name: String,
    result: DataType,
    wide: DataType,
    sums: Box<dyn GroupsAccumulator>,
}

impl Sum {
    /// Values in the wider type, which has room for all of them.
    fn widened(&self, values: &[ArrayRef]) -> Result<[ArrayRef; 1], DataFusionError> {
        let Some(values) = values.first() else {
            return Err(DataFusionError::Internal(format!("{} has no argument", self.name)));
        };
        let values: ArrayRef = match (values.data_type(), &self.wide) {
            (DataType::Int64, _) => {
                let values: PrimitiveArray<Decimal128Type> = values.as_primitive::<Int64Type>().unary(i128::from);
                Arc::new(values.with_data_type(self.wide.clone()))
            }
            (DataType::UInt64, _) => {
                let values: PrimitiveArray<Decimal128Type> = values.as_primitive::<UInt64Type>().unary(i128::from);
                Arc::new(values.with_data_type(self.wide.clone()))
            }
            (DataType::Duration(_), _) => return self.widened(&[cast(values, &DataType::Int64)?]),
            (DataType::Decimal128(..), DataType::Decimal256(..)) => {
                let values: PrimitiveArray<Decimal256Type> =
                    values.as_primitive::<Decimal128Type>().unary(i256::from_i128);
                Arc::new(values.with_data_type(self.wide.clone()))
            }
            (DataType::Decimal128(..), _) => {
                Arc::new(values.as_primitive::<Decimal128Type>().clone().with_data_type(self.wide.clone()))
            }
            _ => cast(values, &self.wide)?,
        };
        Ok([values])
    }

    /// Sums in the type of the result.
    fn narrowed(&self, sums: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let narrowed = match &self.result {
            DataType::Duration(_) => {
                cast_with_options(sums, &DataType::Int64, &options).and_then(|t| cast(&t, &self.result))
            }
            result => cast_with_options(sums, result, &options),
        };
        narrowed.map_err(|error| {
            DataFusionError::Execution(format!("{} is more than {} holds: {error}", self.name, self.result))
        })
    }
}

impl GroupsAccumulator for Sum {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.sums.update_batch(&self.widened(values)?, group_indices, filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef, DataFusionError> {
        let sums = self.sums.evaluate(emit_to)?;
        self.narrowed(&sums)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>, DataFusionError> {
        self.sums.state(emit_to)
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.sums.merge_batch(values, group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        self.sums.convert_to_state(&self.widened(values)?, filter)
    }

    fn size(&self) -> usize {
        self.sums.size()
    }
}

/// The averages of groups: how many values there are, and their sum.
struct Average {
    counts: Box<dyn GroupsAccumulator>,
    sum: Sum,
}

/// A one for each value.
fn ones(values: &[ArrayRef]) -> [ArrayRef; 1] {
    let (length, nulls) = values.first().map_or((0, None), |values| (values.len(), values.logical_nulls()));
    [Arc::new(UInt64Array::new(vec![1; length].into(), nulls))]
}

impl GroupsAccumulator for Average {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.counts.update_batch(&ones(values), group_indices, filter, total_num_groups)?;
        self.sum.update_batch(values, group_indices, filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef, DataFusionError> {
        let (counts, sums) = (self.counts.evaluate(emit_to)?, self.sum.sums.evaluate(emit_to)?);
        let (counts, sums) = (counts.as_primitive::<UInt64Type>(), sums.as_primitive::<Decimal128Type>());
        let average = |(sum, count): (Option<i128>, Option<u64>)| {
            let count = i128::from(count.filter(|count| *count > 0)?);
            // It is between the lowest and the highest of the values.
            i64::try_from(sum? / count).ok()
        };
        let averages: Int64Array = sums.iter().zip(counts).map(average).collect();
        Ok(cast(&averages, &self.sum.result)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>, DataFusionError> {
        Ok([self.counts.state(emit_to)?, self.sum.state(emit_to)?].concat())
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        let (counts, sums) = values.split_at(1.min(values.len()));
        self.counts.merge_batch(counts, group_indices, total_num_groups)?;
        self.sum.merge_batch(sums, group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        let counts = self.counts.convert_to_state(&ones(values), filter)?;
        Ok([counts, self.sum.convert_to_state(values, filter)?].concat())
    }

    fn size(&self) -> usize {
        self.counts.size() + self.sum.size()
    }
}

/// The sums of the different values of groups: these are the state, and are added in the end.
struct DistinctSum {
    values: Box<dyn GroupsAccumulator>,
    sum: Sum,
}

impl GroupsAccumulator for DistinctSum {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.values.update_batch(values, group_indices, filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef, DataFusionError> {
        let state = self.values.state(emit_to)?;
        let Some(lists) = state.first().and_then(|lists| lists.as_list_opt::<i32>()) else {
            return Err(DataFusionError::Internal(format!("the state of {} is no list", self.sum.name)));
        };
        let (values, groups) = super::unnested(lists, 0..lists.len());
        self.sum.update_batch(&[values], &groups, None, lists.len())?;
        // A group without a value has no sum, of which the accumulator of sums knows nothing.
        let none: BooleanArray = lists.offsets().lengths().map(|length| Some(length == 0)).collect();
        Ok(nullif(&self.sum.evaluate(EmitTo::All)?, &none)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>, DataFusionError> {
        self.values.state(emit_to)
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<(), DataFusionError> {
        self.values.merge_batch(values, group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>, DataFusionError> {
        self.values.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.values.size()
    }
}
