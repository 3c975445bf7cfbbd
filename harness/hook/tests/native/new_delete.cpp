// Every form of new and delete, checked, and one block of 123,456 bytes kept.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

static void check(bool holds, const char *what) {
    if (!holds) {
        std::printf("does not hold: %s\n", what);
        std::exit(1);
    }
}

// Keeps the compiler from leaving out an allocation whose block is not used.
static void *seen(void *block) {
    asm volatile("" : "+r"(block) : : "memory");
    return block;
}

struct alignas(256) Wide {
    char bytes[300];
};

struct Sized {
    std::size_t numbers[9];
    virtual ~Sized() = default;
};

int main() {
    for (std::size_t size : {0, 1, 24, 25, 1000, 200000}) {
        void *block = seen(operator new(size));
        std::memset(block, 0xa5, size);
        operator delete(block, size);
        block = seen(operator new[](size));
        std::memset(block, 0xa5, size);
        operator delete[](block);
        for (std::size_t align : {32, 64, 4096}) {
            void *aligned = seen(operator new(size, std::align_val_t(align)));
            check(reinterpret_cast<std::uintptr_t>(aligned) % align == 0, "alignment of new");
            std::memset(aligned, 0xa5, size);
            operator delete(aligned, size, std::align_val_t(align));
        }
        operator delete(seen(operator new(size, std::nothrow)), std::nothrow);
    }

    volatile std::size_t huge = std::numeric_limits<std::size_t>::max() / 2 - 100;
    check(operator new(huge, std::nothrow) == nullptr, "nothrow new of a huge size");
    bool thrown = false;
    try {
        seen(operator new(huge));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    check(thrown, "new of a huge size throws bad_alloc");

    delete static_cast<Sized *>(seen(new Sized));
    delete[] static_cast<Wide *>(seen(new Wide[3]));
    auto wide = std::make_unique<Wide>();
    check(reinterpret_cast<std::uintptr_t>(seen(wide.get())) % 256 == 0, "alignment of a class");
    wide.reset();

    std::vector<std::string> strings;
    for (int i = 0; i < 1000; ++i) strings.emplace_back(std::to_string(i) + std::string(50, 'x'));
    std::printf("%zu strings, the last ends in %c\n", strings.size(), strings.back().back());
    strings.clear();
    strings.shrink_to_fit();

    seen(operator new(123456));
    return 0;
}
