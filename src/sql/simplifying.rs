//! DataFusion's simplification of expressions, kept from asking another question than the one that was written.
//!
//! It moves a cast to the other side of a comparison: of `CAST(amount AS BIGINT) = 12` it makes `amount = 12.00`, which 12.50 does
//! not satisfy, and of `TRY_CAST(qty AS SMALLINT) > 100` it makes `qty > 100`, which 70000 satisfies. So it does not see casts
//! that change values, or that not every value has.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TryCast, Volatility,
};
use datafusion::optimizer::simplify_expressions::SimplifyExpressions;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::pushing::always_fits;

/// The rule, and the function behind which casts are hidden from it.
#[derive(Debug)]
pub(super) struct Simplify {
    rule: SimplifyExpressions,
    veil: Arc<ScalarUDF>,
}

impl Simplify {
    pub(super) fn new() -> Self {
        let veil = Veil { signature: Signature::any(1, Volatility::Immutable) };
        Self { rule: SimplifyExpressions::new(), veil: Arc::new(ScalarUDF::from(veil)) }
    }

    /// The same expression with those casts hidden that must stay where they are.
    fn hidden(&self, expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>, DataFusionError> {
        expr.transform_up(|expr| {
            Ok(match expr {
                Expr::Cast(_) | Expr::TryCast(_) if !keeps_all(&expr, schema) => Transformed::yes(self.veiled(expr)),
                Expr::BinaryExpr(mut binary) => {
                    if exact_times(&binary.left, [&*binary.right], schema) {
                        *binary.left = shown(*binary.left);
                    } else if exact_times(&binary.right, [&*binary.left], schema) {
                        *binary.right = shown(*binary.right);
                    }
                    Transformed::yes(Expr::BinaryExpr(binary))
                }
                Expr::InList(mut list) if exact_times(&list.expr, &list.list, schema) => {
                    *list.expr = shown(*list.expr);
                    Transformed::yes(Expr::InList(list))
                }
                other => Transformed::no(other),
            })
        })
    }

    fn veiled(&self, expr: Expr) -> Expr {
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&self.veil), vec![expr]))
    }
}

impl OptimizerRule for Simplify {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>, DataFusionError> {
        let schema = merge_schema(&plan.inputs());
        let hidden = plan.map_expressions(|expr| self.hidden(expr, &schema))?;
        let simplified = self.rule.rewrite(hidden.data, config)?;
        // It may have put a projection around the node. What is below was done before.
        simplified.data.transform_down(|node| {
            let below = matches!(node, LogicalPlan::Projection(_));
            let mut node = node.map_expressions(|expr| expr.transform_up(|expr| Ok(Transformed::yes(shown(expr)))))?;
            node.tnr = if below { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop };
            Ok(node)
        })
    }
}

const VEIL: &str = "as it is";

/// A function that answers what it is given. A column is called as it would be without it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Veil {
    signature: Signature,
}

impl ScalarUDFImpl for Veil {
    fn name(&self) -> &str {
        VEIL
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String, DataFusionError> {
        Ok(arguments.iter().map(|argument| argument.schema_name().to_string()).collect())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Null))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let value = arguments.args.pop();
        value.ok_or_else(|| DataFusionError::Internal(format!("{VEIL} without a value")))
    }
}

/// What is behind the function.
fn shown(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(mut call) if call.func.name() == VEIL && call.args.len() == 1 => call.args.remove(0),
        other => other,
    }
}

/// Whether a cast has a value for every value, and keeps them apart and in their order.
fn keeps_all(cast: &Expr, schema: &DFSchema) -> bool {
    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) = cast else { return false };
    expr.get_type(schema).is_ok_and(|from| always_fits(&from, field.data_type()))
}

/// Whether a hidden cast takes times to a finer unit, to compare them with times that its own unit holds, too: DataFusion casts
/// so what has another unit. The times themselves are compared then, also those that the finer unit does not hold.
fn exact_times<'a>(hidden: &Expr, against: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
    let Expr::ScalarFunction(call) = hidden else { return false };
    let (VEIL, [Expr::Cast(cast)]) = (call.func.name(), call.args.as_slice()) else { return false };
    let (Ok(from), to) = (cast.expr.get_type(schema), cast.field.data_type()) else { return false };
    let (DataType::Timestamp(coarse, of), DataType::Timestamp(fine, zone)) = (&from, to) else { return false };
    let exact = |literal: &Expr| match literal {
        Expr::Literal(value, _) => {
            value.data_type() == *to
                && value.cast_to(&from).and_then(|time| time.cast_to(to)).is_ok_and(|time| time == *value)
        }
        _ => false,
    };
    of == zone && coarse < fine && against.into_iter().all(exact)
}
