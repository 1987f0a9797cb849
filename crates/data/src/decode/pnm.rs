//! Raw pixels with a short header: PNM of the kinds P5 (grey) and P6 (colours), with 8 bits.
//!
//! The header is text: the kind, width, height and the largest value (255), with blanks and comments (`#` up to the end
//! of the line) between them, and one blank before the pixels.
//!
//! **Invariant:** an image has all its pixels. What follows them is not looked at.
//!
//! What is deliberately not here: other largest values, 16 bits, and kinds that write pixels as text.

use super::{Colours, Picture, Rect, Size};

/// What the header says.
pub(super) struct Header {
    pub(super) size: Size,
    channels: usize,
    /// Where pixels begin.
    pixels_at: usize,
}

impl Header {
    /// Of bytes that begin with P5 or P6.
    pub(super) fn parse(encoded: &[u8]) -> Result<Header, String> {
        let channels = if encoded.get(1) == Some(&b'6') { 3 } else { 1 };
        let mut at = 2;
        let width = number(encoded, &mut at)?;
        let height = number(encoded, &mut at)?;
        let largest = number(encoded, &mut at)?;
        if largest != 255 {
            return Err(format!("a PNM image whose largest value is {largest}; only 255 is read"));
        }
        if !encoded.get(at).is_some_and(u8::is_ascii_whitespace) {
            return Err(format!("a PNM image without a blank before its pixels, at byte {at}"));
        }
        Ok(Header { size: Size { height, width }, channels, pixels_at: at + 1 })
    }

    /// Of the same bytes.
    pub(super) fn decode(
        &self,
        encoded: &[u8],
        part: Rect,
        colours: Colours,
        picture: &mut Picture,
    ) -> Result<(), String> {
        let pixels = &encoded[self.pixels_at..];
        let wanted = self.size.height * self.size.width * self.channels;
        if pixels.len() < wanted {
            return Err(format!("a PNM image with {} bytes of pixels where {wanted} belong", pixels.len()));
        }
        picture.take(&pixels[..wanted], self.size.width, self.channels, part, colours);
        Ok(())
    }
}

/// The next number of the header. Moves behind it.
fn number(encoded: &[u8], at: &mut usize) -> Result<usize, String> {
    let bad = |at: usize| format!("a PNM image without a number at byte {at} of its header");
    loop {
        match encoded.get(*at) {
            Some(blank) if blank.is_ascii_whitespace() => *at += 1,
            Some(b'#') => {
                let line = encoded[*at..].iter().position(|&byte| byte == b'\n');
                *at += line.ok_or_else(|| bad(*at))?;
            }
            _ => break,
        }
    }
    let digits = encoded[*at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&encoded[*at..*at + digits]).map_err(|_| bad(*at))?;
    // More digits than any limit allows are no number here.
    let value = text.parse::<u32>().map_err(|_| bad(*at))?;
    *at += digits;
    Ok(value as usize)
}
