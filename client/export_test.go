package client

// WhyRefused is the hook into the C++ parser, for the tests outside the package.
var WhyRefused = whyRefused
