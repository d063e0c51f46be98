//! Decimal numbers have no more digits than their type says.
//!
//! The result of arithmetic has as many as it needs, up to the most that a type of its width can have. There the bits hold some
//! numbers of one digit more, and DataFusion lets these pass, until something cannot write them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType,
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, FieldRef, Schema,
};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

/// An expression that fails where its number has too many digits.
#[derive(Debug, Eq)]
pub(super) struct Digits {
    number: Arc<dyn PhysicalExpr>,
}

impl Digits {
    pub(super) fn of(number: Arc<dyn PhysicalExpr>) -> Self {
        Self { number }
    }

    /// Whether the bits of a type hold numbers with more digits than it has, and no result has fewer for that reason.
    pub(super) fn may_exceed(data_type: &DataType) -> bool {
        match data_type {
            DataType::Decimal32(precision, _) => *precision == DECIMAL32_MAX_PRECISION,
            DataType::Decimal64(precision, _) => *precision == DECIMAL64_MAX_PRECISION,
            DataType::Decimal128(precision, _) => *precision == DECIMAL128_MAX_PRECISION,
            DataType::Decimal256(precision, _) => *precision == DECIMAL256_MAX_PRECISION,
            _ => false,
        }
    }

    fn check(&self, numbers: &dyn Array) -> Result<(), DataFusionError> {
        let checked = match numbers.data_type() {
            DataType::Decimal32(precision, _) => {
                numbers.as_primitive::<Decimal32Type>().validate_decimal_precision(*precision)
            }
            DataType::Decimal64(precision, _) => {
                numbers.as_primitive::<Decimal64Type>().validate_decimal_precision(*precision)
            }
            DataType::Decimal128(precision, _) => {
                numbers.as_primitive::<Decimal128Type>().validate_decimal_precision(*precision)
            }
            DataType::Decimal256(precision, _) => {
                numbers.as_primitive::<Decimal256Type>().validate_decimal_precision(*precision)
            }
            _ => Ok(()),
        };
        checked.map_err(|error| DataFusionError::Execution(format!("Overflow happened on: {}: {error}", self.number)))
    }
}

// Deriving it would move the expression.
impl PartialEq for Digits {
    fn eq(&self, other: &Self) -> bool {
        self.number.eq(&other.number)
    }
}

impl Hash for Digits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)
    }
}

impl PhysicalExpr for Digits {
    fn return_field(&self, input: &Schema) -> Result<FieldRef, DataFusionError> {
        self.number.return_field(input)
    }

    fn evaluate(&self, rows: &RecordBatch) -> Result<ColumnarValue, DataFusionError> {
        let value = self.number.evaluate(rows)?;
        match &value {
            ColumnarValue::Array(numbers) => self.check(numbers)?,
            ColumnarValue::Scalar(number) => self.check(&number.to_array()?)?,
        }
        Ok(value)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.number]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>, DataFusionError> {
        Ok(Arc::new(Self::of(children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.number)))))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt_sql(f)
    }
}
