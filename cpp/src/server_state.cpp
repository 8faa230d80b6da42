#include "server_state.h"

#include "dflash2/errors.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace dflash2 {

namespace {

constexpr std::array<char, 8> magic = { 'd', 'f', 'l', 'a', 's', 'h', '2', '1' };

std::string beside(const std::string & path) {
    return path + ".dflash2";
}

// FNV-1a. llama.cpp ends the process over a state that is cut short
uint64_t hash(const void * data, size_t size, uint64_t value = 0xcbf29ce484222325) {
    const auto * bytes = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < size; ++i) {
        value = (value ^ bytes[i]) * 0x100000001b3;
    }
    return value;
}

// What follows the magic number
struct Header {
    uint64_t owner;  // conversation and drafter
    uint64_t size;   // bytes of the state, which follow
    uint64_t state;  // their hash
};

// llama.cpp checks the shape of a cache, not whose it is: the file's size and time stand for the drafter
uint64_t owner_of(const std::string & drafter_path, const std::vector<Token> & tokens) {
    std::error_code error;
    const uint64_t  size = std::filesystem::file_size(drafter_path, error);
    const auto      time = std::filesystem::last_write_time(drafter_path, error).time_since_epoch().count();
    const uint64_t  file = hash(&time, sizeof(time), hash(&size, sizeof(size)));
    return hash(tokens.data(), tokens.size() * sizeof(Token), file);
}

bool write_file(const std::string & path, const Header & header, const std::vector<uint8_t> & state) {
    std::ofstream file(path, std::ios::binary);
    file.write(magic.data(), magic.size());
    file.write(reinterpret_cast<const char *>(&header), sizeof(header));
    file.write(reinterpret_cast<const char *>(state.data()), (std::streamsize) state.size());
    file.close();
    return file.good();
}

// Empty where there is no such file or it is not what was written
std::vector<uint8_t> read_file(const std::string & path, uint64_t owner) {
    std::error_code     error;
    const uintmax_t     size = std::filesystem::file_size(path, error);
    std::ifstream       file(path, std::ios::binary);
    std::array<char, 8> found{};
    Header              header{};
    file.read(found.data(), found.size());
    file.read(reinterpret_cast<char *>(&header), sizeof(header));
    if (error || !file || found != magic || header.owner != owner ||
        header.size != size - found.size() - sizeof(header)) {
        return {};
    }
    std::vector<uint8_t> state(header.size);
    file.read(reinterpret_cast<char *>(state.data()), (std::streamsize) state.size());
    return file && hash(state.data(), state.size()) == header.state ? state : std::vector<uint8_t>();
}

}  // namespace

void save_drafter_state(const Drafter &            drafter,
                        const std::string &        drafter_path,
                        llama_seq_id               seq,
                        const std::string &        path,
                        const std::vector<Token> & tokens) {
    std::vector<uint8_t> state(llama_state_seq_get_size(drafter.context(), seq));
    state.resize(llama_state_seq_get_data(drafter.context(), state.data(), state.size(), seq));

    const Header      header    = { owner_of(drafter_path, tokens), state.size(), hash(state.data(), state.size()) };
    const std::string temporary = beside(path) + ".part";
    std::error_code   error     = std::make_error_code(std::errc::io_error);
    if (write_file(temporary, header, state)) {
        std::filesystem::rename(temporary, beside(path), error);
    }
    if (error) {
        std::error_code ignored;
        std::filesystem::remove(temporary, ignored);
        std::filesystem::remove(beside(path), ignored);  // that of another state
        throw Error("[slot] cannot write " + beside(path) + ": " + error.message());
    }
}

bool load_drafter_state(Drafter &                  drafter,
                        const std::string &        drafter_path,
                        llama_seq_id               seq,
                        const std::string &        path,
                        const std::vector<Token> & tokens) {
    drafter.trim(seq, 0);
    const std::vector<uint8_t> state = read_file(beside(path), owner_of(drafter_path, tokens));
    if (state.empty() || llama_state_seq_set_data(drafter.context(), state.data(), state.size(), seq) == 0) {
        drafter.trim(seq, 0);
        return false;
    }
    return true;
}

}  // namespace dflash2
