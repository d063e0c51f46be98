//! An optimised plan as lists of steps: from each scan to where rows are put together, from there to the groups, and after
//! them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, TableScan, Window};
use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion::optimizer::{Optimizer, OptimizerContext, OptimizerRule};

use super::arguments::computed_below;
use super::error::SqlError;
use super::pushing::{in_order, push_down};
use super::ranking;
use super::simplifying::Simplify;

/// The rewrites that are worth it and keep the shape. DataFusion's others are for joins, subqueries and sorting; one of
/// them would nest aggregates.
pub(super) fn optimise(plan: LogicalPlan, windowed: bool) -> Result<LogicalPlan, DataFusionError> {
    optimised(computed_below(plan)?, windowed)
}

/// Conditions on windows stay where they are: below the aggregation a row is not yet in one window.
fn optimised(plan: LogicalPlan, windowed: bool) -> Result<LogicalPlan, DataFusionError> {
    let rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = vec![
        Arc::new(ReplaceDistinctWithAggregate::new()),
        Arc::new(Simplify::new()),
        Arc::new(CommonSubexprEliminate::new()),
        Arc::new(OptimizeProjections::new()),
    ];
    let context = OptimizerContext::new().without_query_execution_start_time().with_skip_failing_rules(false);
    let plan = match windowed {
        true => {
            plan.transform_down(|node| match node {
                LogicalPlan::Filter(mut filter) => {
                    filter.predicate = in_order(filter.predicate);
                    Ok(Transformed::yes(LogicalPlan::Filter(filter)))
                }
                LogicalPlan::Aggregate(mut aggregate) => {
                    aggregate.input = Arc::new(optimised(Arc::unwrap_or_clone(aggregate.input), false)?);
                    Ok(Transformed::new(LogicalPlan::Aggregate(aggregate), true, TreeNodeRecursion::Stop))
                }
                LogicalPlan::Window(mut ranking) if !aggregates(&ranking.input) => {
                    ranking.input = Arc::new(optimised(Arc::unwrap_or_clone(ranking.input), false)?);
                    Ok(Transformed::new(LogicalPlan::Window(ranking), true, TreeNodeRecursion::Stop))
                }
                other => Ok(Transformed::no(other)),
            })?
            .data
        }
        false => push_down(plan)?,
    };
    Optimizer::with_rules(rules).optimize(plan, &context, |_, _| {})
}

/// The rewrites for the first of two aggregations and what is below it. The second sees few rows, and stays as it was written.
pub(super) fn optimise_first(plan: LogicalPlan) -> Result<LogicalPlan, DataFusionError> {
    let plan = computed_below(plan)?.transform_down(|node| match node {
        LogicalPlan::Aggregate(first) if !aggregates(&first.input) => {
            let first = optimised(LogicalPlan::Aggregate(first), true)?;
            Ok(Transformed::new(first, true, TreeNodeRecursion::Stop))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(plan.data)
}

/// Whether something below aggregates.
fn aggregates(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Aggregate(_)))).unwrap_or(false)
}

/// The steps of an optimised plan.
pub(super) struct Flat<'a> {
    /// What is scanned: one table, or the parts of a union.
    pub(super) arms: Vec<FlatArm<'a>>,
    /// The steps between the union and the groups.
    pub(super) before: Vec<&'a LogicalPlan>,
    pub(super) groups: Option<GroupNode<'a>>,
    pub(super) after: Vec<&'a LogicalPlan>,
    /// A second aggregation after those, and the steps after it.
    pub(super) second: Option<(&'a Aggregate, Vec<&'a LogicalPlan>)>,
}

/// A scan and the steps up to where its rows are put together with others.
#[derive(Clone)]
pub(super) struct FlatArm<'a> {
    pub(super) scan: &'a TableScan,
    pub(super) steps: Vec<&'a LogicalPlan>,
}

/// The step that makes groups of rows.
#[derive(Clone, Copy)]
pub(super) enum GroupNode<'a> {
    Aggregate(&'a Aggregate),
    Ranking(&'a Window),
}

impl<'a> GroupNode<'a> {
    pub(super) fn input(self) -> &'a LogicalPlan {
        match self {
            Self::Aggregate(node) => &node.input,
            Self::Ranking(node) => &node.input,
        }
    }

    /// The expression of a group.
    pub(super) fn group(self, number: usize) -> Option<&'a Expr> {
        match self {
            Self::Aggregate(node) => node.group_expr.get(number),
            Self::Ranking(node) => ranking::call(node).ok()?.0.params.partition_by.get(number),
        }
    }
}

/// Makes lists of an optimised plan.
pub(super) fn flatten(plan: &LogicalPlan) -> Result<Flat<'_>, SqlError> {
    let mut steps = Vec::new();
    let mut after = Vec::new();
    let mut groups = None;
    let mut second = None;
    let mut node = plan;
    loop {
        node = match node {
            LogicalPlan::Aggregate(found) if second.is_none() && aggregates(&found.input) => {
                let mut after = std::mem::take(&mut steps);
                after.reverse();
                second = Some((found, after));
                &found.input
            }
            LogicalPlan::Aggregate(_) | LogicalPlan::Window(_) if groups.is_none() && !ranks_groups(node) => {
                let found = match node {
                    LogicalPlan::Window(found) => GroupNode::Ranking(found),
                    LogicalPlan::Aggregate(found) => GroupNode::Aggregate(found),
                    other => return Err(SqlError::new(format!("{} makes no groups", other.display()))),
                };
                groups = Some(found);
                after = std::mem::take(&mut steps);
                after.reverse();
                found.input()
            }
            LogicalPlan::TableScan(_) | LogicalPlan::Union(_) => {
                steps.reverse();
                let mut arms = arms(node)?;
                // Without a union there is one place for the steps before the groups.
                if let [only] = arms.as_mut_slice() {
                    only.steps.append(&mut steps);
                }
                return Ok(Flat { arms, before: steps, groups, after, second });
            }
            other => step(other, &mut steps)?,
        };
    }
}

/// Whether a node numbers the groups below it.
fn ranks_groups(node: &LogicalPlan) -> bool {
    matches!(node, LogicalPlan::Window(window) if aggregates(&window.input))
}

/// Adds a node to the steps if it is one; answers what is below.
fn step<'a>(node: &'a LogicalPlan, steps: &mut Vec<&'a LogicalPlan>) -> Result<&'a LogicalPlan, SqlError> {
    let below = match node {
        LogicalPlan::SubqueryAlias(alias) => return Ok(&alias.input),
        LogicalPlan::Projection(projection) => &projection.input,
        LogicalPlan::Filter(filter) => &filter.input,
        LogicalPlan::Window(window) if aggregates(&window.input) => &window.input,
        other => {
            let message = format!("the optimised query has a step that is not supported: {}", other.display());
            return Err(SqlError::new(message));
        }
    };
    steps.push(node);
    Ok(below)
}

/// The scans below a node, each with its steps up to there. A union is a step of each of its parts.
fn arms(node: &LogicalPlan) -> Result<Vec<FlatArm<'_>>, SqlError> {
    let mut steps = Vec::new();
    let mut below = node;
    let mut arms = loop {
        below = match below {
            LogicalPlan::TableScan(scan) if scan.filters.is_empty() && scan.fetch.is_none() => {
                break vec![FlatArm { scan, steps: Vec::new() }];
            }
            LogicalPlan::Union(union) => {
                let mut all = Vec::new();
                for input in &union.inputs {
                    all.extend(self::arms(input)?);
                }
                steps.push(below);
                break all;
            }
            other => step(other, &mut steps)?,
        };
    };
    steps.reverse();
    arms.iter_mut().for_each(|arm| arm.steps.extend(&steps));
    Ok(arms)
}
