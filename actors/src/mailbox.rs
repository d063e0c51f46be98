//! A mailbox that knows how many messages wait in it.
//!
//! Each message takes a place when it is sent and gives it up when the actor takes it, or when it is dropped with the mailbox.
//! Messages carry whole batches, so the count costs nothing for a record.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message};
use serde::{Serialize, Serializer};

/// How many messages wait in a mailbox. Clones are of the same mailbox.
#[derive(Clone, Debug, Default)]
pub struct Depth(Arc<AtomicUsize>);

impl Depth {
    /// So many now.
    pub fn waiting(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn place(&self) -> Place {
        self.0.fetch_add(1, Ordering::Relaxed);
        Place(self.clone())
    }
}

impl Serialize for Depth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.waiting().serialize(serializer)
    }
}

/// A place in a mailbox, given up when it is dropped.
#[derive(Debug)]
struct Place(Depth);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message with its place.
#[derive(Debug)]
pub struct Counted<M> {
    message: M,
    _place: Place,
}

impl<M> Counted<M> {
    /// The message, which waits no more.
    pub(crate) fn take(self) -> M {
        self.message
    }
}

impl<M: Message> Message for Counted<M> {
    type Result = M::Result;
}

/// Lets an actor take these messages from its mailbox.
macro_rules! counted {
    ($actor:ty: $($(#[$when:meta])? $message:ty),+ $(,)?) => {$(
        $(#[$when])?
        impl actix::Handler<$crate::mailbox::Counted<$message>> for $actor {
            type Result = <Self as actix::Handler<$message>>::Result;

            fn handle(&mut self, counted: $crate::mailbox::Counted<$message>, ctx: &mut Self::Context) -> Self::Result {
                actix::Handler::<$message>::handle(self, counted.take(), ctx)
            }
        }
    )+};
}
pub(crate) use counted;

/// Where an actor gets its messages.
pub struct Mailbox<A: Actor> {
    addr: Addr<A>,
    depth: Depth,
}

impl<A: Actor> fmt::Debug for Mailbox<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<A: Actor> Clone for Mailbox<A> {
    fn clone(&self) -> Self {
        Self::new(self.addr.clone(), self.depth.clone())
    }
}

impl<A: Actor> Mailbox<A> {
    /// That of the actor behind an address, of which all senders have to use the same count.
    pub(crate) fn new(addr: Addr<A>, depth: Depth) -> Self {
        Self { addr, depth }
    }

    /// How many messages wait.
    pub fn depth(&self) -> &Depth {
        &self.depth
    }

    fn counted<M>(&self, message: M) -> Counted<M> {
        Counted { message, _place: self.depth.place() }
    }

    /// Sends a message and waits for the answer.
    pub(crate) fn send<M>(&self, message: M) -> actix::dev::Request<A, Counted<M>>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        A: Handler<Counted<M>>,
        A::Context: ToEnvelope<A, Counted<M>>,
    {
        self.addr.send(self.counted(message))
    }

    /// Sends a message whose answer nobody waits for.
    pub(crate) fn do_send<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        A: Handler<Counted<M>>,
        A::Context: ToEnvelope<A, Counted<M>>,
    {
        self.addr.do_send(self.counted(message));
    }
}

#[cfg(test)]
mod tests {
    use actix::{ActorContext, Context};
    use actix_rt::Arbiter;
    use futures::channel::oneshot;

    use super::*;
    use crate::child;

    /// Takes its messages only when it is let.
    struct Held(Option<oneshot::Receiver<()>>);

    impl Actor for Held {
        type Context = Context<Self>;

        fn started(&mut self, ctx: &mut Self::Context) {
            use actix::{AsyncContext, WrapFuture};
            let let_go = self.0.take().expect("it starts once");
            let held = async move {
                let _ = let_go.await;
            };
            ctx.wait(held.into_actor(self));
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct Say;

    #[derive(Message)]
    #[rtype(result = "()")]
    struct End;

    impl Handler<Say> for Held {
        type Result = ();

        fn handle(&mut self, _: Say, _: &mut Self::Context) {}
    }

    impl Handler<End> for Held {
        type Result = ();

        fn handle(&mut self, _: End, ctx: &mut Self::Context) {
            ctx.terminate();
        }
    }

    counted!(Held: Say, End);

    fn held() -> (child::Child<Held>, oneshot::Sender<()>, oneshot::Receiver<()>) {
        let (go, let_go) = oneshot::channel();
        let (died, death) = oneshot::channel();
        let make = move |_| Held(Some(let_go));
        let died = |_| died.send(()).unwrap_or_default();
        (child::spawn(&Arbiter::current(), Depth::default(), make, died), go, death)
    }

    #[actix_rt::test]
    async fn what_waits_is_counted_until_it_is_taken() {
        let (child, go, _death) = held();
        let mailbox = child.mailbox.clone();
        let answer = mailbox.send(Say);
        mailbox.do_send(Say);
        assert_eq!(mailbox.depth().waiting(), 2);
        drop(go);
        answer.await.expect("it is taken");
        mailbox.send(Say).await.expect("it is taken");
        assert_eq!(mailbox.depth().waiting(), 0);
    }

    #[actix_rt::test]
    async fn what_a_dead_actor_was_sent_waits_no_more() {
        let (child, go, death) = held();
        let mailbox = child.mailbox.clone();
        mailbox.do_send(End);
        let never = mailbox.send(Say);
        drop(go);
        death.await.expect("it dies");
        assert!(never.await.is_err());
        assert!(mailbox.send(Say).await.is_err(), "and nothing gets in any more");
        assert_eq!(mailbox.depth().waiting(), 0);
    }

    #[actix_rt::test]
    async fn what_nobody_waits_for_any_more_is_counted_until_it_is_passed_over() {
        let (child, go, _death) = held();
        let mailbox = child.mailbox.clone();
        drop(mailbox.send(Say));
        assert_eq!(mailbox.depth().waiting(), 1);
        drop(go);
        mailbox.send(Say).await.expect("it is taken");
        assert_eq!(mailbox.depth().waiting(), 0);
    }
}
