//! What stands before the pixels of a JPEG: sizes, tables and the order of components.
//!
//! **Invariant:** a [`Header`] describes an image that this decoder can decode: baseline (or extended sequential with 8
//! bits), Huffman codes, one component or three (Y, Cb, Cr) in one scan, with whole Y samples for each Cb and Cr in one
//! of four arrangements. All tables it refers to are there.
//!
//! What is deliberately not here: complaints. What is not understood is left to `zune-jpeg`, which knows more kinds and
//! says what is wrong.

use super::super::Size;
use super::huffman::Spec;

/// One component of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Component {
    id: u8,
    /// Samples across and down for each MCU, in blocks.
    pub(super) across: usize,
    pub(super) down: usize,
    /// Numbers of its tables.
    pub(super) quant: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// See the module's text.
pub(in super::super) struct Header {
    pub(in super::super) size: Size,
    /// One or three.
    pub(super) components: Vec<Component>,
    /// In zigzag order.
    pub(super) quant: [[u16; 64]; 4],
    pub(super) dc: [Spec; 4],
    pub(super) ac: [Spec; 4],
    /// MCUs between restart markers; zero without.
    pub(super) restart_interval: usize,
    /// Where the entropy-coded bytes begin.
    pub(super) scan_at: usize,
}

/// What has been read so far.
#[derive(Default)]
struct Reader {
    size: Option<Size>,
    components: Vec<Component>,
    quant: [Option<[u16; 64]>; 4],
    dc: [Option<Spec>; 4],
    ac: [Option<Spec>; 4],
    restart_interval: usize,
    jfif: bool,
    adobe: Option<u8>,
}

impl Header {
    /// Reads up to the first scan. Nothing where the image is of another kind, or damaged.
    pub(in super::super) fn parse(encoded: &[u8]) -> Option<Header> {
        let mut reader = Reader::default();
        let mut at = 2;
        loop {
            let kind = match encoded.get(at..at + 2)? {
                [0xff, 0xff] => {
                    at += 1;
                    continue;
                }
                [0xff, kind] => *kind,
                _ => return None,
            };
            let length = usize::from(u16::from_be_bytes(*encoded.get(at + 2..)?.first_chunk()?));
            let body = encoded.get(at + 4..at + 2 + length)?;
            at += 2 + length;
            match kind {
                // Start of a frame: baseline, or extended sequential. All other kinds are not for us.
                0xc0 | 0xc1 => reader.frame(body)?,
                0xc4 => reader.huffman(body)?,
                0xc2..=0xcf => return None,
                0xdb => reader.quantisation(body)?,
                0xdd => reader.restart_interval = usize::from(u16::from_be_bytes(*body.first_chunk()?)),
                0xda => return reader.scan(body, at),
                0xe0 => reader.jfif |= body.starts_with(b"JFIF\0"),
                0xee if body.starts_with(b"Adobe") => reader.adobe = Some(*body.get(11)?),
                // Other applications' data, and comments.
                0xe1..=0xef | 0xfe => {}
                _ => return None,
            }
        }
    }
}

impl Reader {
    fn frame(&mut self, body: &[u8]) -> Option<()> {
        let (&[precision, h1, h0, w1, w0, count], rest) = body.split_first_chunk()?;
        let size = Size { height: u16::from_be_bytes([h1, h0]).into(), width: u16::from_be_bytes([w1, w0]).into() };
        // A height of zero comes later, if at all.
        if precision != 8 || size.height == 0 || size.width == 0 || self.size.is_some() {
            return None;
        }
        self.size = Some(size);
        let (parts, _) = rest.as_chunks::<3>();
        for &[id, sampling, quant] in parts.get(..count.into())? {
            let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            self.components.push(Component { id, across, down, quant: quant.into(), dc: 0, ac: 0 });
        }
        match &mut self.components[..] {
            // One component has a block for each MCU, whatever it says.
            [grey] => (grey.across, grey.down) = (1, 1),
            [y, cb, cr] => {
                let arrangement = matches!((y.across, y.down), (1, 1) | (2, 1) | (1, 2) | (2, 2));
                let single = [cb, cr].iter().all(|chroma| (chroma.across, chroma.down) == (1, 1));
                if !arrangement || !single {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn quantisation(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let table = self.quant.get_mut(usize::from(kind & 15))?;
            let mut numbers = [0; 64];
            if kind >> 4 == 0 {
                let (bytes, after) = rest.split_first_chunk::<64>()?;
                numbers.iter_mut().zip(bytes).for_each(|(number, byte)| *number = u16::from(*byte));
                body = after;
            } else {
                let (bytes, after) = rest.split_first_chunk::<128>()?;
                let pairs = bytes.as_chunks().0;
                numbers.iter_mut().zip(pairs).for_each(|(number, pair)| *number = u16::from_be_bytes(*pair));
                body = after;
            }
            *table = Some(numbers);
        }
        Some(())
    }

    fn huffman(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            let (spec, after) = Spec::parse(rest)?;
            *tables.get_mut(usize::from(kind & 15))? = Some(spec);
            body = after;
        }
        Some(())
    }

    fn scan(mut self, body: &[u8], scan_at: usize) -> Option<Header> {
        let (&count, rest) = body.split_first()?;
        if usize::from(count) != self.components.len() {
            return None;
        }
        let (parts, end) = rest.split_at_checked(2 * usize::from(count))?;
        if end != [0, 63, 0] {
            return None;
        }
        for (component, &[id, tables]) in self.components.iter_mut().zip(parts.as_chunks::<2>().0) {
            if component.id != id {
                return None;
            }
            (component.dc, component.ac) = (usize::from(tables >> 4), usize::from(tables & 15));
            self.quant.get(component.quant)?.as_ref()?;
            self.dc.get(component.dc)?.as_ref()?;
            self.ac.get(component.ac)?.as_ref()?;
        }
        if self.components.len() == 3 && !self.is_ycbcr() {
            return None;
        }
        Some(Header {
            size: self.size?,
            components: self.components,
            quant: self.quant.map(|table| table.unwrap_or([0; 64])),
            dc: self.dc.map(Option::unwrap_or_default),
            ac: self.ac.map(Option::unwrap_or_default),
            restart_interval: self.restart_interval,
            scan_at,
        })
    }

    /// Whether three components are brightness and two differences, by libjpeg's rules.
    fn is_ycbcr(&self) -> bool {
        match (self.jfif, self.adobe) {
            (true, _) => true,
            (false, Some(transform)) => transform == 1,
            (false, None) => self.components.iter().map(|component| component.id).ne(*b"RGB"),
        }
    }
}
