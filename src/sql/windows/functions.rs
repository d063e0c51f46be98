//! The functions that calls of windows are rewritten into: from a time to the start of its (last) window, and from the
//! start to the end.
//!
//! Their names have a space, so that no one takes them for functions of the language. A time whose window cannot be
//! expressed has none: the result is NULL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Fields, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::calendar::Calendar;
use super::tick;

/// `"window start"(time, size, slide, offset)`, lengths in nanoseconds.
pub(super) const START: &str = "window start";
/// `"window end"(start, size)`.
pub(super) const END: &str = "window end";
/// `"calendar start"(time, unit, zone)`.
pub(super) const CALENDAR_START: &str = "calendar start";
/// `"calendar end"(start, unit, zone)`.
pub(super) const CALENDAR_END: &str = "calendar end";

/// `"session window"(time, gap)`, the gap in nanoseconds or as an interval: a struct of `[time, time + gap)`.
pub(super) const SESSION: &str = "session window";

/// All of them.
pub(super) const ALL: [&str; 5] = [START, END, CALENDAR_START, CALENDAR_END, SESSION];

/// The functions.
pub(super) fn all() -> Vec<ScalarUDF> {
    ALL.into_iter()
        .map(|name| ScalarUDF::from(Bound { name, signature: Signature::user_defined(Volatility::Immutable) }))
        .collect()
}

/// A function that answers a bound of a window.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bound {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Bound {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        match arguments.first() {
            Some(time @ DataType::Timestamp(..)) if self.name == SESSION => Ok(session(time)),
            Some(time @ DataType::Timestamp(..)) => Ok(time.clone()),
            // A window of windows.
            Some(window) if ended(window).is_some() && matches!(self.name, START | CALENDAR_START) => {
                Ok(ended(window).unwrap_or(window).clone())
            }
            Some(window) if ended(window).is_some() => Err(DataFusionError::Plan(
                "sessions of windows are not supported: window(window, '1 hour') makes larger windows of them".into(),
            )),
            other => Err(DataFusionError::Plan(format!(
                "a window is of a TIMESTAMP, not of {}: declare the column as TIMESTAMP or cast it",
                other.map_or_else(|| "nothing".to_owned(), ToString::to_string)
            ))),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let types: Vec<_> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        if let (SESSION, [_, gap]) = (self.name, types.as_slice()) {
            let constant = arguments.scalar_arguments.get(1).is_some_and(Option::is_some);
            match gap {
                DataType::Interval(_) | DataType::Duration(_) => {}
                DataType::Int64 if constant => {}
                other => {
                    return Err(DataFusionError::Plan(format!(
                        "the gap of a session is an INTERVAL, not {other}: write INTERVAL '5 minutes', also where CASE decides; a \
                         number of seconds is one by arrow_cast(..., 'Duration(Second)')"
                    )));
                }
            }
        }
        Ok(Arc::new(Field::new(self.name, self.return_type(&types)?, true)))
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        let time = match arguments.first() {
            Some(time @ DataType::Timestamp(..)) => time.clone(),
            Some(DataType::Date32) => DataType::Timestamp(TimeUnit::Millisecond, None),
            // What is no time is refused with its type, above.
            Some(other) => other.clone(),
            None => DataType::Null,
        };
        let rest = match (self.name, arguments.get(1)) {
            (SESSION, Some(DataType::Interval(_))) => DataType::Interval(IntervalUnit::MonthDayNano),
            (SESSION, Some(DataType::Duration(_))) => DataType::Duration(TimeUnit::Nanosecond),
            // What is no length is refused with its type, below.
            (SESSION, Some(gap)) => gap.clone(),
            (START | END, _) => DataType::Int64,
            _ => DataType::Utf8,
        };
        Ok(std::iter::once(time).chain(arguments.iter().skip(1).map(|_| rest.clone())).collect())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let last = match arguments.args.first() {
            Some(window) if ended(&window.data_type()).is_some() => last_tick(window, arguments.number_rows)?,
            Some(time) => time.clone(),
            None => return Err(DataFusionError::Internal(format!("{} without a time", self.name))),
        };
        let time = &last;
        let data_type = time.data_type();
        let tick = tick(&data_type);
        let length = |place: usize| match arguments.args.get(place) {
            Some(ColumnarValue::Scalar(ScalarValue::Int64(Some(nanos)))) => Ok(nanos / tick),
            _ => Err(DataFusionError::Internal(format!("{}: the length of a window is no constant", self.name))),
        };
        let text = |place: usize| match arguments.args.get(place) {
            Some(ColumnarValue::Scalar(value)) => Ok(value.try_as_str().flatten().unwrap_or_default().to_owned()),
            _ => Err(DataFusionError::Internal(format!("{}: the calendar is no constant", self.name))),
        };
        if self.name == SESSION {
            let rows = arguments.number_rows;
            let [time, gap] = [&arguments.args[0], &arguments.args[1]].map(|value| value.to_array(rows));
            return Ok(ColumnarValue::Array(intervals(&time?, &gap?)?));
        }
        let one = matches!(time, ColumnarValue::Scalar(_));
        let times = cast(&time.to_array(if one { 1 } else { arguments.number_rows })?, &DataType::Int64)?;
        let times = times.as_primitive::<Int64Type>();
        let bounds: Int64Array = match self.name {
            START => {
                let (size, slide, offset) = (length(1)?, length(2)?, length(3)?);
                times.unary_opt(|time| start(time, size, slide, offset))
            }
            END => {
                let size = length(1)?;
                times.unary_opt(|start| start.checked_add(size))
            }
            _ => {
                let calendar = Calendar::new(&text(1)?, &text(2)?).map_err(DataFusionError::Plan)?;
                let at_start = self.name == CALENDAR_START;
                // Neighbours are mostly of one period.
                let mut last = (0, 0);
                let mut bound = |time| {
                    if !(last.0..last.1).contains(&time) {
                        last = calendar.bounds(time, tick)?;
                    }
                    Some(if at_start { last.0 } else { last.1 })
                };
                times.iter().map(|time| time.and_then(&mut bound)).collect()
            }
        };
        let bounds = cast(&(Arc::new(bounds) as Arc<dyn Array>), &data_type)?;
        Ok(match one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&bounds, 0)?),
            false => ColumnarValue::Array(bounds),
        })
    }
}

/// The type of the bounds if a type is that of windows, `[start, end)`.
fn ended(window: &DataType) -> Option<&DataType> {
    let DataType::Struct(fields) = window else { return None };
    let [start, end] = fields.as_ref() else { return None };
    let named = start.name() == "start" && end.name() == "end";
    (named && matches!(end.data_type(), DataType::Timestamp(..))).then(|| end.data_type())
}

/// The last tick of each window, which is in whatever larger window it is in.
fn last_tick(windows: &ColumnarValue, rows: usize) -> Result<ColumnarValue, DataFusionError> {
    let windows = windows.to_array(rows)?;
    let Some(ends) = windows.as_struct_opt().map(|windows| windows.column(1)) else {
        return Err(DataFusionError::Internal(format!("{} is no window", windows.data_type())));
    };
    let ticks = cast(ends, &DataType::Int64)?;
    let last: Int64Array = ticks.as_primitive::<Int64Type>().unary_opt(|end| end.checked_sub(1));
    Ok(ColumnarValue::Array(cast(&(Arc::new(last) as ArrayRef), ends.data_type())?))
}

/// The type of a session.
fn session(time: &DataType) -> DataType {
    let bounds = ["start", "end"].map(|name| Field::new(name, time.clone(), true));
    DataType::Struct(Fields::from(bounds.to_vec()))
}

/// Each time with the gap after it. None where there is no gap, or none of a fixed length.
fn intervals(times: &ArrayRef, gaps: &ArrayRef) -> Result<ArrayRef, DataFusionError> {
    let tick = tick(times.data_type());
    let gaps: Int64Array = match gaps.as_primitive_opt::<IntervalMonthDayNanoType>() {
        Some(gaps) => gaps.unary_opt(|gap| {
            let days = i64::from(gap.days).checked_mul(86_400_000_000_000)?;
            if gap.months == 0 { days.checked_add(gap.nanoseconds) } else { None }
        }),
        None => cast(gaps, &DataType::Int64)?.as_primitive::<Int64Type>().clone(),
    };
    let ticks = cast(times, &DataType::Int64)?;
    let ticks = ticks.as_primitive::<Int64Type>();
    let ends: Int64Array = ticks
        .iter()
        .zip(gaps.iter())
        .map(|(time, gap)| {
            let gap = gap.filter(|gap| *gap > 0 && gap % tick == 0)? / tick;
            time?.checked_add(gap)
        })
        .collect();
    let nulls = ends.nulls().cloned();
    let DataType::Struct(fields) = session(times.data_type()) else { return Ok(Arc::new(ends)) };
    let ends = cast(&(Arc::new(ends) as ArrayRef), times.data_type())?;
    Ok(Arc::new(StructArray::try_new(fields, vec![Arc::clone(times), ends], nulls)?))
}

/// The start of the last window that has a time. None if a bound of one of its windows is out of range.
fn start(time: i64, size: i64, slide: i64, offset: i64) -> Option<i64> {
    let start = time.checked_sub(time.checked_sub(offset)?.rem_euclid(slide))?;
    start.checked_add(size)?;
    time.checked_sub(size)?.checked_sub(slide)?;
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::start;

    #[test]
    fn a_window_has_its_start_and_not_its_end() {
        for (time, expected) in [(0, 0), (59, 0), (60, 60), (61, 60), (-1, -60), (-60, -60), (-61, -120)] {
            assert_eq!(start(time, 60, 60, 0), Some(expected), "{time}");
        }
        for (time, expected) in [(0, -55), (4, -55), (5, 5), (-55, -55), (-56, -115)] {
            assert_eq!(start(time, 60, 60, 5), Some(expected), "{time}");
        }
        assert_eq!((start(0, 60, 20, -5), start(15, 60, 20, -5)), (Some(-5), Some(15)));
        assert_eq!((start(i64::MAX, 60, 60, 0), start(i64::MIN, 60, 60, 0)), (None, None));
    }
}
