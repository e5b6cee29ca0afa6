//! The GPUs of this machine.

use std::fmt;

/// A GPU that a driver answers for.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// The name that its driver gives it.
    pub name: String,
    /// Where its memory is.
    pub kind: Kind,
    /// Name and version of the driver.
    pub driver: String,
    /// The smallest and the largest size of a subgroup; equal where the device has one size.
    pub subgroup_lanes: [u32; 2],
    /// Whether shaders can add up the lanes of a subgroup.
    pub subgroups: bool,
    /// Largest part of a buffer that a shader can bind.
    pub binding_bytes: u64,
    /// Largest buffer.
    pub buffer_bytes: u64,
    pub(crate) handle: wgpu::Adapter,
}

/// Kinds of adapters, the fastest for our purpose first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A card with memory of its own.
    Discrete,
    /// Part of the processor, with whom it shares memory.
    Integrated,
    /// A share of a card, in a virtual machine.
    Virtual,
    /// The driver does not say.
    Other,
    /// The processor itself, by a program like Mesa's lavapipe: correct, and slower than the kernels for it.
    Software,
}

impl Kind {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Software => "software",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every adapter, those with memory of their own first; empty on a machine without a driver or its loader.
pub fn adapters() -> Vec<Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        // no layers of the driver: this crate's own tests check what it submits
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
    let mut adapters: Vec<Adapter> = found.into_iter().map(Adapter::new).collect();
    adapters.sort_by_key(|adapter| adapter.kind);
    adapters
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lanes, mebibytes) = (self.lanes(), self.binding_bytes >> 20);
        write!(f, "{} ({}; {}; {lanes} lanes, {mebibytes} MiB a binding)", self.name, self.kind, self.driver)
    }
}

/// A line for each adapter, for people.
pub fn listed(adapters: &[Adapter]) -> String {
    if adapters.is_empty() {
        return "There is no GPU: no Vulkan driver answers on this machine.".to_owned();
    }
    let lines = adapters.iter().map(|adapter| format!("\n  {adapter}"));
    format!("GPUs:{}", lines.collect::<String>())
}

impl Adapter {
    /// Everything that can change a bit of a product: name, driver, and sizes of subgroups.
    pub fn identity(&self) -> String {
        format!("{} ({}; {} lanes)", self.name, self.driver, self.lanes())
    }

    fn lanes(&self) -> String {
        let [least, most] = self.subgroup_lanes;
        if least == most { most.to_string() } else { format!("{least} to {most}") }
    }

    fn new(handle: wgpu::Adapter) -> Self {
        let (info, limits) = (handle.get_info(), handle.limits());
        Self {
            name: info.name,
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
                wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
                wgpu::DeviceType::VirtualGpu => Kind::Virtual,
                wgpu::DeviceType::Other => Kind::Other,
                wgpu::DeviceType::Cpu => Kind::Software,
            },
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            subgroup_lanes: [info.subgroup_min_size, info.subgroup_max_size],
            subgroups: handle.features().contains(wgpu::Features::SUBGROUP),
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
            handle,
        }
    }
}
