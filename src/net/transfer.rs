//! A body that goes on where it broke off.

use std::io::{self, Read};

use super::error::{Broken, NetError};
use super::http::Answer;
use super::retry::Retry;

/// Opens a body from a byte on.
type Open<'a> = dyn Fn(u64) -> Result<Answer<'a>, NetError> + Send + 'a;

/// A body that is opened again, a few times, when it breaks. Its errors of reading hold a [`NetError`].
pub(super) struct Transfer<'a> {
    open: Box<Open<'a>>,
    broke: Box<dyn Fn(Broken) -> NetError + Send + 'a>,
    answer: Answer<'a>,
    at: u64,
    tries: Retry,
}

impl<'a> Transfer<'a> {
    /// Takes `answer`, which `open` gave from `at` on; `broke` tells what was being done when it broke for good.
    pub(super) fn new(
        answer: Answer<'a>,
        at: u64,
        tries: Retry,
        open: impl Fn(u64) -> Result<Answer<'a>, NetError> + Send + 'a,
        broke: impl Fn(Broken) -> NetError + Send + 'a,
    ) -> Self {
        Self { open: Box::new(open), broke: Box::new(broke), answer, at, tries }
    }
}

impl Read for Transfer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let error = match self.answer.read(buffer) {
                Ok(read) => {
                    self.at += read as u64;
                    return Ok(read);
                }
                Err(error) => error.downcast::<Broken>()?,
            };
            if !error.is_transient() || !self.tries.pause(None) {
                return Err(io::Error::other((self.broke)(error)));
            }
            self.answer = (self.open)(self.at).map_err(io::Error::other)?;
        }
    }
}
