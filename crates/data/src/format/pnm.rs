//! Bare pixels as an image file: PNM, which is a line of text and the pixels.
//!
//! Arrays hold pixels without any format. As PGM (`P5`, grey) or PPM (`P6`, red, green and blue) they can be handed to
//! whoever decodes images, for the price of a copy.

/// An image of bytes, row by row, with 1 or 3 bands interleaved. Nothing if there are not as many bytes as that takes.
pub fn encode(height: usize, width: usize, bands: usize, pixels: &[u8]) -> Option<Vec<u8>> {
    let kind = match bands {
        1 => 5,
        3 => 6,
        _ => return None,
    };
    let wanted = height.checked_mul(width)?.checked_mul(bands)?;
    if wanted != pixels.len() || wanted == 0 {
        return None;
    }
    let header = format!("P{kind}\n{width} {height}\n255\n");
    Some([header.as_bytes(), pixels].concat())
}

/// The height, width and bands of an image, and its pixels. Nothing if it is no binary PNM of bytes, or too short.
pub fn decode(bytes: &[u8]) -> Option<(usize, usize, usize, &[u8])> {
    let bands = match bytes.get(..2)? {
        b"P5" => 1,
        b"P6" => 3,
        _ => return None,
    };
    let mut rest = &bytes[2..];
    let [width, height, largest] = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
    // One white space ends the header.
    let (_, pixels) = rest.split_first()?;
    let wanted = height.checked_mul(width)?.checked_mul(bands)?;
    (largest == 255 && wanted > 0).then_some(())?;
    Some((height, width, bands, pixels.get(..wanted)?))
}

/// The next number of a header, behind white space and comments.
fn number(rest: &mut &[u8]) -> Option<usize> {
    loop {
        match rest {
            [b'#', ..] => {
                let end = rest.iter().position(|byte| *byte == b'\n')?;
                *rest = &rest[end..];
            }
            [space, after @ ..] if space.is_ascii_whitespace() => *rest = after,
            _ => break,
        }
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (text, after) = rest.split_at(digits);
    *rest = after;
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pixels_come_back(height in 1usize..6, width in 1usize..6, grey: bool, byte: u8) {
            let bands = if grey { 1 } else { 3 };
            let pixels: Vec<u8> = (0..height * width * bands).map(|at| byte.wrapping_add(at as u8)).collect();
            let encoded = encode(height, width, bands, &pixels).unwrap();
            prop_assert_eq!(decode(&encoded).unwrap(), (height, width, bands, pixels.as_slice()));
            for end in 0..encoded.len() {
                prop_assert_eq!(decode(&encoded[..end]), None);
            }
        }

        #[test]
        fn garbage_is_no_image(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
            bytes.splice(0..0, *b"P6\n# a\n");
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn other_numbers_of_bands_and_bytes_are_refused() {
        assert_eq!(encode(1, 1, 2, &[0; 2]), None);
        assert_eq!(encode(2, 2, 1, &[0; 3]), None);
        assert_eq!(encode(usize::MAX, 2, 1, &[]), None);
        assert_eq!(decode(b"P5\n1 1\n65535\nab"), None);
    }
}
